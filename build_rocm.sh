#!/usr/bin/env bash
# Builds the library once and writes a stamped flash_attn wheel for one combination of versions:
# build_rocm.sh --help.
# packaging/build_rocm.py is the implementation; this script finds a Python for it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for python in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
  if command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    exec "$python" "$root/packaging/build_rocm.py" "$@"
  fi
done
echo "build_rocm.sh: no Python 3.9 or newer${PYTHON:+ (PYTHON is $PYTHON)}; apt-get install python3, or set PYTHON" >&2
exit 2
