#!/usr/bin/env bash
# Runs the Python tests against the library in build/ (or ROCFLASH_LIBRARY).
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

export ROCFLASH_LIBRARY=${ROCFLASH_LIBRARY:-$PWD/build/lib/librocflash.so}
[[ -e $ROCFLASH_LIBRARY ]] || { echo "python_tests.sh: $ROCFLASH_LIBRARY does not exist; build first" >&2; exit 2; }
python=$(scripts/python_env.sh test)
export PYTHONPATH=$PWD/python:$PWD/python/flash-attn:$PWD/python/flash-attn-3:$PWD/python/flash-attn-4
# torch's oneDNN crashes on virtual machines that leave a CPUID leaf empty.
export ONEDNN_MAX_CPU_ISA=${ONEDNN_MAX_CPU_ISA:-AVX512_CORE_FP16}
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
exec "$python" -m pytest "$@"
