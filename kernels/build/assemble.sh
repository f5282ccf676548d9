#!/usr/bin/env bash
# Makes one AMD code object of a family's compiled units:
#
#   assemble.sh CLANG LLD ARCH OUTPUT BASE UNIT.s...
#
# The units were compiled for their family (gfx11-generic) or for this very architecture; here they are renamed and
# assembled for one member. The assembler refuses any instruction that the member does not have. BASE is - for a family's first
# member, and for the others the first one's OUTPUT: assembled code is the same for all of a family but for the flags in the
# ELF header, which name the member, so theirs are copies with other flags (tests/kernels/build/members.sh compares).
#
# A code object has one metadata note, and drivers read only the first they find. The linker would keep one note per unit, so
# the units' metadata are taken out and assembled as one.
set -euo pipefail

clang=$1 lld=$2 arch=$3 output=$4 base=$5
shift 5
triple=amdgcn-amd-amdhsa
parts=$output.parts
mkdir -p "$parts"

assemble() { "$clang" --target=$triple -mcpu="$arch" -x assembler -c "$1" -o "$2"; }

# Generic targets want code object version 6, which only young drivers load; the members' own is 5.
as_member() {
  sed -E -e "s/^(\t\.amdgcn_target \"$triple--)[a-z0-9-]+\"/\1$arch\"/" \
    -e 's/^(\t\.amdhsa_code_object_version) 6$/\1 5/' "$@"
}

{
  printf '\t.amdgcn_target "%s--%s"\n\t.amdhsa_code_object_version 5\n' $triple "$arch"
  printf '\t.amdgpu_metadata\n---\namdhsa.kernels:\n'
  # The entries of each unit's list of kernels: what is indented under its key.
  awk 'FNR == 1 { inside = 0 } /^[^ ]/ { inside = /^amdhsa\.kernels:$/; next } inside' "$@"
  printf 'amdhsa.target: %s--%s\namdhsa.version:\n  - 1\n  - 2\n...\n\t.end_amdgpu_metadata\n' $triple "$arch"
} >"$parts/metadata.s"
assemble "$parts/metadata.s" "$parts/metadata.o"

objects=()
for unit in "$@"; do
  part=$parts/$(basename "$unit" .s)
  if [[ $base == - ]]; then
    as_member -e '/^\t\.amdgpu_metadata$/,/^\t\.end_amdgpu_metadata$/d' "$unit" >"$part.s"
    assemble "$part.s" "$part.o"
  else
    # The flags are the four bytes from 48 on.
    cp "$base.parts/${part##*/}.o" "$part.o"
    dd if="$parts/metadata.o" of="$part.o" bs=4 skip=12 seek=12 count=1 conv=notrunc status=none
  fi
  objects+=("$part.o")
done
objects+=("$parts/metadata.o")

"$lld" -shared --strip-all --no-undefined -o "$output" "${objects[@]}"
