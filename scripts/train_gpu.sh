#!/usr/bin/env bash
# Runs the training benchmark on a GPU: native, Triton and torch's attention with both presets;
# writes JSON and plots. Takes about two minutes on an H200, mostly compilation. A failing backend
# or diverging losses make the script fail after all have run.
#
#   RESULTS=train-results   output directory of r-default.json, r-mi300x.json, their plots and the
#                           report
#   PYTHON=python3          a Python with a torch that can use the GPU, Triton and, for plots,
#                           matplotlib
#   TESTS=1, REPORT=1       also run the tests of rocflash.sdpa on the GPU, and
#                           python -m rocflash.report: one more minute each
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} results=${RESULTS:-train-results}
export ROCFLASH_LIBRARY=${ROCFLASH_LIBRARY:-$PWD/build/lib/librocflash.so}
export PYTHONPATH=$PWD/python:$PWD/python/flash-attn:$PWD/python/flash-attn-3:$PWD/python/flash-attn-4${PYTHONPATH:+:$PYTHONPATH}
[[ -e $ROCFLASH_LIBRARY ]] || { echo "train_gpu.sh: $ROCFLASH_LIBRARY does not exist; build first" >&2; exit 2; }
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "train_gpu.sh: $python has no torch that can use a GPU" >&2; exit 2; }
mkdir -p "$results"
failed=0

"$python" prove_fa3_mi300x.py || failed=1
FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE "$python" test_fa3.py || failed=1
for preset in mi300x default; do
  others=(sdpa)
  [[ $preset == mi300x ]] && others=(sdpa sdpa_flash sdpa_cudnn)
  plot=()
  "$python" -c 'import matplotlib' 2>/dev/null && plot=(--plot "$results/r-$preset.svg")
  "$python" benchmarks/benchmark_fa2_vs_fa3_mlp_transformer.py --preset "$preset" --backends "${others[@]}" \
    --output-json "$results/r-$preset.json" "${plot[@]}" || failed=1
done
if [[ ${TESTS:-0} == 1 ]]; then
  "$python" -m pytest -q -p no:cacheprovider tests/python/test_sdpa.py -k like_torch || failed=1
fi
if [[ ${REPORT:-0} == 1 ]]; then
  "$python" -m rocflash.report --output "$results/report.html" --every 30 || failed=1
fi
exit "$failed"
