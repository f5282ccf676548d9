#!/usr/bin/env bash
# Prints the toolchain of the library: versions of compilers, linkers, CMake, and of the statically
# linked libraries. It is the key of build caches.
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
  # shellcheck disable=SC2016 # variables of dpkg-query
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n' 'clang-22' 'lld-22' 'libstdc++*-dev' 'libzstd-dev' 'libdlpack-dev' \
    'libcli11-dev' 'libfmt-dev' 'nlohmann-json3-dev' 'libc6-dev' 2>/dev/null | awk '$3 ~ /^ii/ { print $1, $2 }' | sort || true
fi
