#!/usr/bin/env bash
# Runs a benchmark of benchmarks/ against the library in build/ (or ROCFLASH_LIBRARY), with torch.
#   scripts/cpu_bench.sh cpu_vs_torch|cpu_features|cpu_in_model [ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: cpu_bench.sh cpu_vs_torch|cpu_features|cpu_in_model [ARGUMENTS]"
(($# > 0)) || { echo "$usage" >&2; exit 2; }
program=benchmarks/$1.py
shift
[[ -e $program ]] || { echo "cpu_bench.sh: $program does not exist" >&2; exit 2; }
export ROCFLASH_LIBRARY=${ROCFLASH_LIBRARY:-$PWD/build/lib/librocflash.so}
[[ -e $ROCFLASH_LIBRARY ]] || { echo "cpu_bench.sh: $ROCFLASH_LIBRARY does not exist; build first" >&2; exit 2; }
if ! python=$(scripts/python_env.sh test); then
  echo "cpu_bench.sh: could not install torch. Run this again with a package index, or set ROCFLASH_VENVS to" >&2
  echo "a directory whose test/ has torch. Without torch, build/bin/rocflash bench compares with naive attention." >&2
  exit 1
fi
export HF_HUB_OFFLINE=1
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
echo "== $program $*"
exec "$python" "$program" "$@"
