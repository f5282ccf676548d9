#!/usr/bin/env bash
# Formats C, C++ and Python, or with --check fails if a file is not formatted. Without file names:
# all files of the repository.
#   scripts/format.sh [--check] [FILE...]
# The formatters are those that packaging/requirements-lint.txt pins; CLANG_FORMAT names another.
set -euo pipefail
cd "$(dirname "$0")/.."

check=0
if [[ ${1:-} == --check ]]; then
  check=1
  shift
fi
python=$(scripts/python_env.sh lint)
formatter=${CLANG_FORMAT:-$(dirname "$python")/clang-format}

# Includes new files that git does not ignore. An unpacked archive has no git.
list_files() {
  if (($# > 0)); then
    printf '%s\n' "$@"
  elif git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard
  else
    find . \( -name 'build*' -o -name '.?*' \) -prune -o -type f -print
  fi
}
cpp=() py=()
while read -r file; do
  [[ -e $file ]] || continue
  case $file in
    *.c | *.h | *.cpp | *.hpp | *.cu | *.hip) cpp+=("$file") ;;
    *.py) py+=("$file") ;;
  esac
done < <(list_files "$@" | sort -u)

status=0
if ((${#cpp[@]} > 0)); then
  if ((check)); then "$formatter" --dry-run --Werror "${cpp[@]}" || status=1; else "$formatter" -i "${cpp[@]}"; fi
fi
if ((${#py[@]} > 0)); then
  if ((check)); then "$python" -m ruff format --check --quiet "${py[@]}" || status=1; else "$python" -m ruff format --quiet "${py[@]}"; fi
fi
if ((status)); then
  echo "format.sh: files are not formatted; make format formats them" >&2
elif ((check)); then
  echo "all $((${#cpp[@]} + ${#py[@]})) files are formatted"
else
  echo "$((${#cpp[@]} + ${#py[@]})) files formatted"
fi
exit $status
