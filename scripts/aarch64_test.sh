#!/usr/bin/env bash
# Cross-builds the library and the command for aarch64 Linux, and checks the CPU backend under
# qemu-user, once per instruction set. Needs clang 22, lld 22, qemu-user, and Debian's
# libc6-dev-arm64-cross and libstdc++-12-dev-arm64-cross. Arguments go to `rocflash verify`; without
# arguments it takes every fifth of the quick cases, about two minutes.
#   scripts/aarch64_test.sh [--quick]
set -euo pipefail
cd "$(dirname "$0")/.."

root=/usr/aarch64-linux-gnu
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) ||
  { echo "aarch64_test.sh: qemu-aarch64 not found; install qemu-user" >&2; exit 2; }
[[ -e $root/lib/libc.so.6 ]] ||
  { echo "aarch64_test.sh: $root/lib/libc.so.6 does not exist; install libc6-dev-arm64-cross" >&2; exit 2; }

[[ -e build-aarch64/CMakeCache.txt ]] || cmake --preset aarch64 -G Ninja --log-level=WARNING
cmake --build build-aarch64 --parallel "${JOBS:-2}" --target rocflash rocflash_cli
(($#)) || set -- --every 5
# A CPU without BFDOT, and one with it.
for cpu in cortex-a72 max; do
  echo "== $cpu: $("$qemu" -cpu "$cpu" -L "$root" build-aarch64/bin/rocflash info | grep -m1 -i cpu)"
  "$qemu" -cpu "$cpu" -L "$root" build-aarch64/bin/rocflash verify --device cpu --quiet "$@"
done
