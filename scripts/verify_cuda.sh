#!/usr/bin/env bash
# Verifies an NVIDIA GPU: the full verification with gradients (on Hopper with and without the
# sm_90a kernels, and the assembler's log of those), compute-sanitizer on a sample of every kind of
# kernel, the Python tests on CUDA tensors including graphs and a second stream, and a small
# transformer trained on the GPU and on the CPU. Without an NVIDIA driver it reports that and exits.
# Each step prints the elapsed seconds.
#
#   DEVICE=cuda:0    the GPU
#   EVERY=24         sampling interval of the quick table under each tool of compute-sanitizer
#   FULL=--full      the level of rocflash verify
#   SAMPLE=1         sampling interval of that level (all cases take about half an hour)
#   PYTHON=python3   a Python with a torch that can use the GPU, and pytest
set -euo pipefail
cd "$(dirname "$0")/.."

device=${DEVICE:-cuda:0} every=${EVERY:-24} level=${FULL:---full} sample=${SAMPLE:-1} python=${PYTHON:-python3}
# shellcheck source=scripts/verify_gpu.sh
source scripts/verify_gpu.sh

require_device cuda

if [[ -f build/kernels/sm_90a.ptx ]] && "$command" info | grep -q ' sm_90a$'; then
  step "sm_90a kernels: the log of the driver's JIT compiler"
  "$python" scripts/ptxas_log.py build/kernels/sm_90a.ptx
  step "verify: $level on $device, one case in $sample, without the sm_90a kernels"
  ROCFLASH_HOPPER=0 "$command" verify --device "$device" "$level" --every "$sample"
fi
verify_device

# Cases of the quick table by name, gradients included: several KV tiles with f32 and wgmma
# products, large head dims, the kernels of bias, slopes and sinks, one kernel per gradient, decode
# and append. Then every $every-th case of all.
samples=(causal/f32/140x1030 causal/bf16/140x1030 causal/bf16/70x290 /d576 'alibi (h)/' 'bias (1,h,q,k)/' sinks/ deterministic/
  'decode gqa' 'latent pages 16' 'append pages 7' 'cache f16 splits')
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [[ -n $sanitizer ]]; then
  for tool in memcheck racecheck initcheck; do
    checked() { "$sanitizer" --tool "$tool" --error-exitcode 1 "$command" verify --device "$device" --threads 1 "$@"; }
    for sample in "${samples[@]}"; do
      step "compute-sanitizer $tool: $sample"
      checked --filter "$sample" | tail -n 3
    done
    step "compute-sanitizer $tool: one case in $every"
    checked --every "$every" | tail -n 3
  done
else
  step "compute-sanitizer: skipped, not installed (part of the CUDA toolkit)"
fi

python_tests
