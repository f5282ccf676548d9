#!/usr/bin/env bash
# Prints what the library is compiled with: versions of compilers, linkers, CMake, and of the libraries that end up inside. A cache
# of built files is good for one such list.
set -euo pipefail
cd "$(dirname "$0")/.."

compilers=$(scripts/setup.sh --cmake-compilers)
for option in $compilers; do
  "${option#*=}" --version | head -n 1
done
for tool in ld ld.lld-22 cmake; do
  if command -v "$tool" >/dev/null; then "$tool" --version | head -n 1; fi
done
if command -v dpkg-query >/dev/null; then
  # shellcheck disable=SC2016 # dpkg's own variables
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n' 'clang-22' 'lld-22' 'libstdc++*-dev' 'libzstd-dev' 'libdlpack-dev' \
    'libcli11-dev' 'libfmt-dev' 'nlohmann-json3-dev' 'libc6-dev' 2>/dev/null | awk '$3 ~ /^ii/ { print $1, $2 }' | sort || true
fi
