#!/usr/bin/env bash
# Runs a benchmark of bench/ against the library in build/ (or the one that ROCFLASH_LIBRARY names), with torch.
#   scripts/cpu_bench.sh cpu_vs_torch|cpu_options|cpu_in_model [ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

program=bench/${1:?usage: cpu_bench.sh cpu_vs_torch|cpu_options|cpu_in_model [ARGUMENTS]}.py
shift
[[ -e $program ]] || { echo "cpu_bench.sh: no program $program" >&2; exit 2; }
export ROCFLASH_LIBRARY=${ROCFLASH_LIBRARY:-$PWD/build/lib/librocflash.so}
[[ -e $ROCFLASH_LIBRARY ]] || { echo "cpu_bench.sh: $ROCFLASH_LIBRARY is not there; build first" >&2; exit 2; }
if ! python=$(scripts/python_env.sh test); then
  echo "cpu_bench.sh: torch could not be installed. With a package index in reach run this again, or set ROCFLASH_VENVS to" >&2
  echo "a folder whose test/ has it. Without torch, build/bin/rocflash bench compares with standard attention." >&2
  exit 1
fi
export HF_HUB_OFFLINE=1
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
echo "== $program $*"
exec "$python" "$program" "$@"
