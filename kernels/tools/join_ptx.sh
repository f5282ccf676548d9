#!/usr/bin/env bash
# Joins PTX units into one module: join_ptx.sh OUTPUT UNIT.ptx...
# The first unit's header serves all. Names of different units must differ, as drivers would refuse the module.
set -euo pipefail

output=$1
shift
awk 'FNR == 1 { unit++ }
  /^\.(version|target|address_size)/ {
    if (unit == 1) { header[$1] = $0 } else { if (header[$1] != $0) { print FILENAME ": " $0 ", but the first unit has " header[$1] > "/dev/stderr"; exit 1 } next }
  }
  { print }' "$@" >"$output.new"

repeated=$(sed -nE 's/^\.visible \.entry ([A-Za-z0-9_]+).*/\1/p' "$output.new" | sort | uniq -d)
if [[ -n $repeated ]]; then
  echo "kernels that are in more than one unit: $repeated" >&2
  exit 1
fi
mv "$output.new" "$output"
