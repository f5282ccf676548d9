#!/usr/bin/env bash
# Prints the release notes of a version: its section of the changelog, and its wheels.
#   packaging/release_notes.sh [--wheels] [VERSION [DIRECTORY]]
# The default is the current version, with SHA-256 sums of the wheels in DIRECTORY (dist/).
# --wheels prints a page with the wheels only. The stamped wheels have sums if DIRECTORY has any of
# them.
# The current version uses the section Unreleased until the changelog has a section with its number.
set -euo pipefail
cd "$(dirname "$0")/.."

page=notes
if [[ ${1:-} == --wheels ]]; then
  page=wheels
  shift
fi
current=$(<VERSION)
version=${1:-$current}
version=${version#v}
directory=${2:-dist}
section() {
  awk -v title="$1" '
    /^## \[/ { inside = index($0, "## [" title "]") == 1; next }
    inside' CHANGELOG.md
}
if [[ $page == notes ]]; then
  notes=$(section "$version")
  if [[ -z ${notes//[[:space:]]/} && $version == "$current" ]]; then notes=$(section Unreleased); fi
  if [[ -z ${notes//[[:space:]]/} ]]; then
    echo "release_notes.sh: CHANGELOG.md has no section [$version]; it has $(sed -n 's/^## \[\([^]]*\)\].*/\1/p' CHANGELOG.md | paste -sd, -)" >&2
    exit 1
  fi
  echo "$notes"
  echo
  echo "### Wheels"
else
  echo "# Wheels of rocflash $version"
fi
echo
sums() {
  local wheel
  for wheel in "$@"; do
    echo "- \`$(basename "$wheel")\`, sha256 \`$(sha256sum "$wheel" | cut -d ' ' -f 1)\`"
  done
}
shopt -s nullglob
sums "$directory"/rocflash-"$version"-*.whl "$directory"/flash_attn-*-py3-none-any.whl "$directory"/flash_attn_3-*.whl "$directory"/flash_attn_4-*.whl
stamped=("$directory"/flash_attn-*+rocm*.whl)
echo
echo "Stamped wheels, each self-contained. Those named triton depend on triton and use it by default:"
echo
if ((${#stamped[@]} > 0)); then
  sums "${stamped[@]}"
else
  echo '```'
  python3 create_matrix.py --triton --wheels
  echo '```'
fi
