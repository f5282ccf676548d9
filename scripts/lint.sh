#!/usr/bin/env bash
# Static checks.
#   scripts/lint.sh static           ShellCheck, actionlint, ruff: seconds
#   scripts/lint.sh mypy             types of the Python packages: a minute
#   scripts/lint.sh tidy [FILE...]   clang-tidy on the compiled sources and the headers that they
#                                    include, or on those files: needs a configured build-lint/
# TIDY_SHARE=I/N checks every Nth source, starting at the Ith.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: lint.sh static | mypy | tidy [FILE...]"
check=${1:?$usage}
shift

static() {
  local tools status=0
  tools=$(dirname "$(scripts/python_env.sh lint)")
  echo "shellcheck"
  "$tools/shellcheck" -x scripts/*.sh packaging/*.sh kernels/build/*.sh build_rocm.sh .ci/run || status=1
  echo "actionlint"
  scripts/actionlint.sh || status=$?
  if ((status == 77)) && [[ -z ${CI:-} ]]; then
    echo "lint.sh: actionlint cannot be built here; the workflows were not checked" >&2
    status=0
  fi
  echo "ruff"
  "$tools/ruff" check --output-format concise . || status=1
  return $status
}

# torch has types, so mypy reads the environment of the tests.
types() {
  local python
  python=$(scripts/python_env.sh test)
  echo "mypy"
  "$(scripts/python_env.sh lint)" -m mypy --python-executable "$python"
}

tidy() {
  local tool=${CLANG_TIDY:-clang-tidy-22} share=${TIDY_SHARE:-1/1} sources files
  command -v "$tool" >/dev/null || { echo "$tool is not installed; scripts/setup.sh installs it" >&2; exit 1; }
  [[ $share =~ ^[1-9][0-9]*/[1-9][0-9]*$ ]] || { echo "lint.sh: TIDY_SHARE is $share; it must be I/N" >&2; exit 2; }
  # Only files in the compilation database have compile flags.
  mapfile -t sources < <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build-lint/compile_commands.json | sort -u |
    grep -E "^$PWD/(benchmarks|cli|examples|sim|src|tests|verify)/" |
    awk -v first="${share%/*}" -v step="${share#*/}" 'NR % step == first % step')
  if (($# > 0)); then
    files=$(printf "$PWD/%s\n" "$@")
    mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -Fx "$files" || true)
  fi
  echo "clang-tidy on ${#sources[@]} files"
  ((${#sources[@]} == 0)) || printf '%s\0' "${sources[@]}" |
    xargs -0 -n 1 -P "${JOBS:-2}" "$tool" -p build-lint --quiet
}

case $check in
  static) static ;;
  mypy) types ;;
  tidy) tidy "$@" ;;
  *)
    echo "lint.sh: argument: $check; $usage" >&2
    exit 2
    ;;
esac
