#!/usr/bin/env bash
# Formats all C and C++ files of the repository, or with --check fails if one would change.
set -euo pipefail
cd "$(dirname "$0")/.."

formatter=${CLANG_FORMAT:-clang-format-22}
if ! command -v "$formatter" >/dev/null; then
  echo "$formatter is not there; scripts/setup.sh installs it" >&2
  exit 1
fi

# New files count too, as long as git does not ignore them. An unpacked archive has no git.
list_files() {
  if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard
  else
    find . \( -name 'build*' -o -name '.?*' \) -prune -o -type f -print
  fi
}
files=()
while read -r file; do
  [[ -e $file ]] && files+=("$file")
done < <(list_files | grep -E '\.(c|h|cpp|hpp|cu|hip)$' | sort -u)

if [[ ${1:-} == --check ]]; then
  "$formatter" --dry-run --Werror "${files[@]}"
  echo "all ${#files[@]} files are formatted"
else
  "$formatter" -i "${files[@]}"
  echo "${#files[@]} files formatted"
fi
