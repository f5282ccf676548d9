#!/usr/bin/env bash
# That a family's members may share assembled code: what kernels/build/assemble.sh copied from the first member is what the assembler
# makes of the same unit for each of the others, which also shows that they have its instructions.
#   members.sh CLANG UNIT KERNELS-FOLDER FAMILY MEMBER...
set -euo pipefail

clang=$1 unit=$2 folder=$3 family=$4
shift 4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for member in "$@"; do
  sed -E -e "s/^(\t\.amdgcn_target \"amdgcn-amd-amdhsa--)[a-z0-9-]+\"/\1$member\"/" \
    -e 's/^(\t\.amdhsa_code_object_version) 6$/\1 5/' \
    -e '/^\t\.amdgpu_metadata$/,/^\t\.end_amdgpu_metadata$/d' "$folder/$family/$unit.s" >"$scratch/unit.s"
  "$clang" --target=amdgcn-amd-amdhsa -mcpu="$member" -x assembler -c "$scratch/unit.s" -o "$scratch/unit.o"
  cmp "$scratch/unit.o" "$folder/$member.co.parts/$unit.o"
done
