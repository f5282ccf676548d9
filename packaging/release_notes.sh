#!/usr/bin/env bash
# Prints a release's notes: the changelog's section of a version, and the wheels that belong to it.
#   packaging/release_notes.sh [VERSION [FOLDER]]     the version at hand by default; with sums of the wheels in FOLDER (dist/)
# A version whose section still says Unreleased, because it is the one to come, has that one.
set -euo pipefail
cd "$(dirname "$0")/.."

current=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml | head -n 1)
version=${1:-$current}
version=${version#v}
folder=${2:-dist}
section() {
  awk -v title="$1" '
    /^## \[/ { inside = index($0, "## [" title "]") == 1; next }
    inside' CHANGELOG.md
}
notes=$(section "$version")
if [[ -z ${notes//[[:space:]]/} && $version == "$current" ]]; then notes=$(section Unreleased); fi
if [[ -z ${notes//[[:space:]]/} ]]; then
  echo "release_notes.sh: CHANGELOG.md has no section [$version]; it has $(sed -n 's/^## \[\([^]]*\)\].*/\1/p' CHANGELOG.md | paste -sd, -)" >&2
  exit 1
fi
echo "$notes"
echo
echo "### Wheels"
echo
shopt -s nullglob
for wheel in "$folder"/rocflash-"$version"-*.whl "$folder"/flash_attn-*-py3-none-any.whl "$folder"/flash_attn_3-*.whl; do
  echo "- \`$(basename "$wheel")\`, sha256 \`$(sha256sum "$wheel" | cut -d ' ' -f 1)\`"
done
echo
echo "Stamped, each with everything inside; those named triton depend on triton and use it unless told otherwise:"
echo
echo '```'
python3 packaging/create_matrix.py --triton --wheels
echo '```'
