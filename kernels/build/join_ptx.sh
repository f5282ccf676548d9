#!/usr/bin/env bash
# Joins PTX units into one module: join_ptx.sh OUTPUT UNIT.ptx...
# The module has the first unit's header, and each identical declaration once. Definitions must have
# unique names, otherwise drivers would reject the module. Comments are removed.
set -euo pipefail

output=$1
shift
awk 'FNR == 1 { unit++ }
  { sub(/[ \t]*\/\/.*$/, "") }
  /^$/ { next }
  /^\.(version|target|address_size)/ {
    if (unit > 1 && header[$1] != $0) {
      print FILENAME ": " $0 ", but the first unit has " header[$1] >"/dev/stderr"
      exit 1
    }
    header[$1] = $0
    if (unit > 1) next
  }
  /^\.extern .*;$/ && declared[$0]++ { next }
  { print }' "$@" >"$output.new"

# Definitions start a line: ".visible .entry name(", ".func name(", ".global .align 4 .b8 name[4]".
repeated=$(sed -nE -e 's/^(\.(visible|weak) )?\.(entry|func)( \([^)]*\))? ([A-Za-z0-9_$]+).*/\5/p' \
  -e 's/^(\.(visible|weak) )?\.(global|const|shared) .*[ \t]([A-Za-z0-9_$]+)(\[.*|;| =.*)$/\4/p' "$output.new" |
  sort | uniq -d)
if [[ -n $repeated ]]; then
  echo "defined by more than one unit: ${repeated//$'\n'/ }" >&2
  exit 1
fi
mv "$output.new" "$output"
