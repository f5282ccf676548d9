#!/usr/bin/env bash
# clang-tidy over the compiled sources of src/, verify/ and cli/, shellcheck over the scripts, ruff over Python. Needs build-lint/ to be
# configured.
set -euo pipefail
cd "$(dirname "$0")/.."

tidy=${CLANG_TIDY:-clang-tidy-22}
for tool in "$tidy" shellcheck; do
  if ! command -v "$tool" >/dev/null; then
    echo "$tool is not there; scripts/setup.sh installs it" >&2
    exit 1
  fi
done

echo "shellcheck"
shellcheck -x scripts/*.sh packaging/*.sh kernels/build/*.sh build_rocm.sh .ci/run

echo "ruff"
"$(scripts/python_env.sh test)" -m ruff check .

# Only files in the compilation database have flags to be read with.
mapfile -t sources < <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build-lint/compile_commands.json | sort -u |
  grep -E "^$PWD/(src|verify|cli)/")
echo "clang-tidy on ${#sources[@]} files"
printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "${JOBS:-2}" "$tidy" -p build-lint --quiet
