#!/usr/bin/env bash
# Shows that what is shipped runs on a system with an old C library: installs one by debootstrap (once), puts the wheel in dist/ into it,
# and runs there what this machine built. Needs root and debootstrap; not part of `make test`, which looks at symbol versions instead.
#   old_system_test.sh [SUITE [MIRROR [DEBOOTSTRAP-OPTION...]]]
#   old_system_test.sh                                                         Debian 10: glibc 2.28, as RHEL 8 has it
#   old_system_test.sh bullseye http://deb.debian.org/debian                   Debian 11: glibc 2.31, as SLES 15 has it; Python 3.9
#   old_system_test.sh bionic http://archive.ubuntu.com/ubuntu --keyring=FILE  Ubuntu 18.04: glibc 2.27
# ROCFLASH_OLD_SYSTEMS says where the systems are kept (default: the user's cache).
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-buster} mirror=${2:-http://archive.debian.org/debian}
shift $(($# > 2 ? 2 : $#))
root=${ROCFLASH_OLD_SYSTEMS:-${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/systems}/$suite
wheel=$(ls dist/rocflash-*-manylinux_*.whl 2>/dev/null) || { echo "old_system_test.sh: no wheel in dist/; run make wheels" >&2; exit 2; }
program=build/bin/glibc_shims_test
[[ -x $program ]] || { echo "old_system_test.sh: $program is not there; run make build" >&2; exit 2; }

if [[ ! -e $root/.complete ]]; then
  command -v debootstrap >/dev/null || { echo "old_system_test.sh: debootstrap is not there; apt-get install debootstrap" >&2; exit 2; }
  [[ $(id -u) == 0 ]] || { echo "old_system_test.sh: debootstrap and chroot need root" >&2; exit 2; }
  echo "== $suite from $mirror into $root"
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase --include=python3-minimal,python3-numpy "$@" "$suite" "$root" "$mirror" >"$root.log" ||
    { tail -n 5 "$root.log" >&2; exit 1; }
  touch "$root/.complete"
fi

# The wheel is unpacked as installers do it: site-packages is what the archive holds.
rm -rf "$root/opt/rocflash"
mkdir -p "$root/opt/rocflash"
python3 -m zipfile -e "$wheel" "$root/opt/rocflash"
chmod +x "$root/opt/rocflash/rocflash/bin/rocflash"
cp "$program" packaging/old_system.py "$root/opt/rocflash/"
# $ORIGIN in a program's library path is read from /proc, which no other process sees there.
# shellcheck disable=SC2016 # the inner shell's own variables
inside() {
  env -i PATH=/usr/sbin:/sbin:/usr/bin:/bin HOME=/root LC_ALL=C unshare --mount sh -c \
    'root=$1; shift; mount --rbind /proc "$root/proc"; exec chroot "$root" "$@"' sh "$root" "$@"
}

echo "== $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release"), $(inside ldd --version | head -n 1)"
inside /opt/rocflash/glibc_shims_test
inside /opt/rocflash/rocflash/bin/rocflash info
inside /opt/rocflash/rocflash/bin/rocflash verify --quick --every "${EVERY:-1}"
# The package is for Python 3.9 and newer; in older ones the library is called by the standard library alone.
inside python3 /opt/rocflash/old_system.py /opt/rocflash
echo "old_system_test.sh: $(basename "$wheel") works on $suite"
