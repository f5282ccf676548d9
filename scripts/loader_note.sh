#!/bin/sh
# loader_note.sh DIRECTORY: after an installation, says what programs need in order to find the
# library there. The command rocflash finds it by itself.
#   ROCFLASH_LDCONFIG   ldconfig, for tests
set -eu

directory=$1
ldconfig=${ROCFLASH_LDCONFIG:-$(command -v ldconfig || echo /sbin/ldconfig)}
[ -x "$ldconfig" ] || exit 0
if "$ldconfig" -p 2>/dev/null | grep -qF " => $directory/librocflash.so"; then
  exit 0
fi
if "$ldconfig" -v -N -X 2>/dev/null | grep -q "^$directory/\{0,1\}:"; then
  echo "-- Run \`sudo ldconfig\`, so that programs find librocflash.so in $directory."
else
  echo "-- $directory is not in the loader's search path: link programs with -Wl,-rpath,$directory, set"
  echo "-- LD_LIBRARY_PATH=$directory, or add it to /etc/ld.so.conf.d and run \`sudo ldconfig\`."
fi
