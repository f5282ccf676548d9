#!/bin/sh
# Sets up an environment with Triton and NumPy once, then runs the kernels on the simulator.
# Usage: run.sh ENVIRONMENT_DIRECTORY LIBAMDHIP64
# Exits with 77 (skipped) if Triton cannot be installed.
set -eu
environment=$1
library=$2
here=$(dirname "$0")
if [ ! -x "$environment/bin/python" ]; then
  python3 -m venv "$environment" || exit 77
fi
if ! "$environment/bin/python" -c 'import numpy, triton' 2>/dev/null; then
  "$environment/bin/pip" install --quiet triton numpy || exit 77
fi
TRITON_CACHE_DIR="$environment/cache" exec "$environment/bin/python" "$here/run.py" --library "$library"
