#!/usr/bin/env bash
# Tests that the wheel in dist/ runs on a system with an old C library: installs one with
# debootstrap (once), unpacks the wheel into it, and runs the tests there. Needs root and
# debootstrap. Not part of `make test`, which checks symbol versions instead.
#   old_system_test.sh [SUITE [MIRROR [DEBOOTSTRAP-OPTION...]]]
#   old_system_test.sh
#     Debian 10: glibc 2.28, as in RHEL 8
#   old_system_test.sh bullseye http://deb.debian.org/debian
#     Debian 11: glibc 2.31, as in SLES 15; Python 3.9
#   old_system_test.sh bionic http://archive.ubuntu.com/ubuntu --keyring=FILE
#     Ubuntu 18.04: glibc 2.27
# ROCFLASH_OLD_SYSTEMS is the directory of the systems (default: the user's cache).
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-buster} mirror=${2:-http://archive.debian.org/debian}
shift $(($# > 2 ? 2 : $#))
root=${ROCFLASH_OLD_SYSTEMS:-${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/systems}/$suite
wheel=$(ls dist/rocflash-*-manylinux_*.whl 2>/dev/null) || { echo "old_system_test.sh: no wheel in dist/; run make wheels" >&2; exit 2; }
program=build/bin/glibc_shims_test
[[ -x $program ]] || { echo "old_system_test.sh: $program does not exist; run make build" >&2; exit 2; }

if [[ ! -e $root/.complete ]]; then
  command -v debootstrap >/dev/null || { echo "old_system_test.sh: debootstrap is not installed; apt-get install debootstrap" >&2; exit 2; }
  [[ $(id -u) == 0 ]] || { echo "old_system_test.sh: debootstrap and chroot need root" >&2; exit 2; }
  echo "== $suite from $mirror into $root"
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase --include=python3-minimal,python3-numpy "$@" "$suite" "$root" "$mirror" >"$root.log" ||
    { tail -n 5 "$root.log" >&2; exit 1; }
  touch "$root/.complete"
fi

# The wheel's archive has the contents of site-packages.
rm -rf "$root/opt/rocflash"
mkdir -p "$root/opt/rocflash"
python3 -m zipfile -e "$wheel" "$root/opt/rocflash"
chmod +x "$root/opt/rocflash/rocflash/bin/rocflash"
cp "$program" packaging/old_system.py "$root/opt/rocflash/"
# The loader resolves $ORIGIN through /proc, which is mounted in a private mount namespace.
# shellcheck disable=SC2016 # the inner shell's own variables
run_in_root() {
  env -i PATH=/usr/sbin:/sbin:/usr/bin:/bin HOME=/root LC_ALL=C unshare --mount sh -c \
    'root=$1; shift; mount --rbind /proc "$root/proc"; exec chroot "$root" "$@"' sh "$root" "$@"
}

echo "== $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release"), $(run_in_root ldd --version | head -n 1)"
run_in_root /opt/rocflash/glibc_shims_test
run_in_root /opt/rocflash/rocflash/bin/rocflash info
run_in_root /opt/rocflash/rocflash/bin/rocflash verify --quick --every "${EVERY:-1}"
# The package needs Python 3.9; with an older one the library is called through ctypes.
run_in_root python3 /opt/rocflash/old_system.py /opt/rocflash
echo "old_system_test.sh: $(basename "$wheel") works on $suite"
