#!/usr/bin/env bash
# Assembles and links one AMD code object from the compiled units of a family:
#
#   assemble.sh CLANG LLD ARCH OUTPUT BASE UNIT.s...
#
# The units were compiled for their family (gfx11-generic) or for ARCH itself. This script changes
# their target to ARCH and assembles them; the assembler rejects instructions that ARCH lacks. BASE
# is - for a family's first member, and that member's OUTPUT for the others: the machine code is
# identical for all members, except for the ELF header flags that identify the member. The others
# are therefore copies with other flags (tests/kernels/build/members.sh compares them).
#
# Drivers read only the first metadata note of a code object, and the linker would keep one note per
# unit. So the metadata of all units are extracted and assembled as one note.
set -euo pipefail

clang=$1 lld=$2 arch=$3 output=$4 base=$5
shift 5
triple=amdgcn-amd-amdhsa
parts=$output.parts
mkdir -p "$parts"

assemble() { "$clang" --target=$triple -mcpu="$arch" -x assembler -c "$1" -o "$2"; }

# Generic targets need code object version 6, which only recent drivers load; members use version 5.
as_member() {
  sed -E -e "s/^(\t\.amdgcn_target \"$triple--)[a-z0-9-]+\"/\1$arch\"/" \
    -e 's/^(\t\.amdhsa_code_object_version) 6$/\1 5/' "$@"
}

{
  printf '\t.amdgcn_target "%s--%s"\n\t.amdhsa_code_object_version 5\n' $triple "$arch"
  printf '\t.amdgpu_metadata\n---\namdhsa.kernels:\n'
  # The entries of each unit's kernel list: the indented lines under its key.
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
    # e_flags: the four bytes at offset 48.
    cp "$base.parts/${part##*/}.o" "$part.o"
    dd if="$parts/metadata.o" of="$part.o" bs=4 skip=12 seek=12 count=1 conv=notrunc status=none
  fi
  objects+=("$part.o")
done
objects+=("$parts/metadata.o")

"$lld" -shared --strip-all --no-undefined -o "$output" "${objects[@]}"
