#!/usr/bin/env bash
# Checks that the members of a family may share assembled code. kernels/build/assemble.sh copies the
# objects of the first member; assembling the same unit for each other member must give equal bytes.
#   members.sh CLANG UNIT KERNELS-DIRECTORY FAMILY MEMBER...
set -euo pipefail

clang=$1 unit=$2 directory=$3 family=$4
shift 4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for member in "$@"; do
  sed -E -e "s/^(\t\.amdgcn_target \"amdgcn-amd-amdhsa--)[a-z0-9-]+\"/\1$member\"/" \
    -e 's/^(\t\.amdhsa_code_object_version) 6$/\1 5/' \
    -e '/^\t\.amdgpu_metadata$/,/^\t\.end_amdgpu_metadata$/d' "$directory/$family/$unit.s" >"$scratch/unit.s"
  "$clang" --target=amdgcn-amd-amdhsa -mcpu="$member" -x assembler -c "$scratch/unit.s" -o "$scratch/unit.o"
  cmp "$scratch/unit.o" "$directory/$member.co.parts/$unit.o"
done
