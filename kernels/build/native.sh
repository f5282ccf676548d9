#!/bin/sh
# Which GPUs this machine has: a line "name source" for each AMD architecture, and "nvidia driver" where NVIDIA's kernel module
# shows a card. No driver library is needed, so a machine that builds may lack them.
#   ROCFLASH_SYSFS, ROCFLASH_PROC   where to look instead of /sys and /proc
#   ROCFLASH_ROCMINFO               the program that is asked where sysfs has no AMD GPU, as in containers that hide it
set -eu

# The kernel writes gfx90a as 90010: major, then two digits each for minor and stepping. CPUs are nodes too, with version 0.
for properties in "${ROCFLASH_SYSFS:-/sys}"/class/kfd/kfd/topology/nodes/*/properties; do
  if [ -r "$properties" ]; then sed -n 's/^gfx_target_version \([1-9][0-9]*\)$/\1/p' "$properties"; fi
done | awk '!seen[$1]++ { printf "gfx%d%x%x kfd\n", int($1 / 10000), int($1 / 100) % 100, $1 % 100 }' | {
  found=$(cat)
  if [ -n "$found" ]; then
    echo "$found"
  else
    rocminfo=${ROCFLASH_ROCMINFO:-$(command -v rocminfo || echo /opt/rocm/bin/rocminfo)}
    if [ -x "$rocminfo" ]; then
      # One that hangs on a broken driver must not hold up a build.
      { timeout 60 "$rocminfo" 2>/dev/null || true; } |
        awk '$1 == "Name:" && $2 ~ /^gfx[0-9a-f]+$/ && NF == 2 && !seen[$2]++ { print $2 " rocminfo" }'
    fi
  fi
}
for card in "${ROCFLASH_PROC:-/proc}"/driver/nvidia/gpus/*; do
  if [ -e "$card" ]; then
    echo "nvidia driver"
    break
  fi
done
