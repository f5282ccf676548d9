#!/bin/sh
# Lists the GPUs of this machine: a line "name source" for each AMD architecture, and "nvidia
# driver" if NVIDIA's kernel module reports a device. No driver library is needed: a build machine
# may lack them.
#
#   native.sh            the GPUs
#   native.sh --signs    also device files and libraries of GPU drivers, as "what: path": a build
#                        without kernels is probably a mistake on such a machine
#
#   ROCFLASH_SYSFS, ROCFLASH_PROC, ROCFLASH_DEV   directories to read instead of /sys, /proc, /dev
#   ROCFLASH_DRIVERS                colon-separated directories to search for drivers instead of
#                                   those of ldconfig and /opt/rocm/lib
#   ROCFLASH_ROCMINFO               fallback program if sysfs has no AMD GPU, as in some containers
set -eu

# The kernel reports gfx90a as 90010: major, then two digits each for minor and stepping. CPUs are
# nodes too, with version 0.
for properties in "${ROCFLASH_SYSFS:-/sys}"/class/kfd/kfd/topology/nodes/*/properties; do
  if [ -r "$properties" ]; then sed -n 's/^gfx_target_version \([1-9][0-9]*\)$/\1/p' "$properties"; fi
done | awk '!printed[$1]++ { printf "gfx%d%x%x kfd\n", int($1 / 10000), int($1 / 100) % 100, $1 % 100 }' | {
  found=$(cat)
  if [ -n "$found" ]; then
    echo "$found"
  else
    rocminfo=${ROCFLASH_ROCMINFO:-$(command -v rocminfo || echo /opt/rocm/bin/rocminfo)}
    if [ -x "$rocminfo" ]; then
      # rocminfo may hang on a broken driver, which must not block a build.
      { timeout 60 "$rocminfo" 2>/dev/null || true; } |
        awk '$1 == "Name:" && $2 ~ /^gfx[0-9a-f]+$/ && NF == 2 && !printed[$2]++ { print $2 " rocminfo" }'
    fi
  fi
}
for card in "${ROCFLASH_PROC:-/proc}"/driver/nvidia/gpus/*; do
  if [ -e "$card" ]; then
    echo "nvidia driver"
    break
  fi
done

[ "${1:-}" = --signs ] || exit 0
for file in kfd nvidia0 nvidiactl; do
  if [ -e "${ROCFLASH_DEV:-/dev}/$file" ]; then echo "device: /dev/$file"; fi
done
if [ -n "${ROCFLASH_DRIVERS+set}" ]; then
  IFS=:
  set -f
  for directory in $ROCFLASH_DRIVERS; do
    for library in libamdhip64.so libcuda.so.1; do
      if [ -e "$directory/$library" ]; then echo "driver: $directory/$library"; fi
    done
  done
else
  { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true; } |
    sed -n 's/.*=> \(.*\/libamdhip64\.so\(\.[0-9]*\)\{0,1\}\)$/driver: \1/p; s/.*=> \(.*\/libcuda\.so\.1\)$/driver: \1/p'
  if [ -e /opt/rocm/lib/libamdhip64.so ]; then echo "driver: /opt/rocm/lib/libamdhip64.so"; fi
fi
