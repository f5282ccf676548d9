#!/usr/bin/env bash
# Everything that is to be proved on an NVIDIA card: the full verify with gradients (on Hopper with and without its own kernels, and
# what its compiler says of those), compute-sanitizer on a sample that has every
# kind of kernel, the Python tests on CUDA tensors, graphs and a second stream among them, and a small transformer trained on the
# card and on the CPU. Without an NVIDIA driver it says so and does nothing. Each step prints the seconds since the start.
#
#   DEVICE=cuda:0    the card
#   EVERY=24         one case in so many of the quick table under each tool of compute-sanitizer
#   FULL=--full      the level of verify
#   SAMPLE=1         one case in so many of that level (all take about half an hour)
#   PYTHON=python3   a Python with a torch that can use the card, and pytest
set -euo pipefail
cd "$(dirname "$0")/.."

device=${DEVICE:-cuda:0} every=${EVERY:-24} level=${FULL:---full} sample=${SAMPLE:-1} python=${PYTHON:-python3}
command=build/bin/rocflash
[[ -x $command ]] || { echo "verify_cuda.sh: $command is not there; build first" >&2; exit 2; }

driver=$("$command" info | sed -n 's/^  cuda \(used\|not used\) *//p')
if ! "$command" info | grep -q '^  cuda used'; then
  echo "verify-cuda: skipped, no NVIDIA driver is in use: $driver"
  exit 0
fi
"$command" info

step() { echo "== [$SECONDS s] $*"; }

if [[ -f build/kernels/sm_90a.ptx ]] && "$command" info | grep -q ' sm_90a$'; then
  step "Hopper's kernels: what the driver's compiler says of them"
  "$python" scripts/ptxas_log.py build/kernels/sm_90a.ptx
  step "verify: $level on $device, one case in $sample, without Hopper's kernels"
  ROCFLASH_HOPPER=0 "$command" verify --device "$device" "$level" --every "$sample"
fi
step "verify: $level on $device, one case in $sample, forward and gradients"
"$command" verify --device "$device" "$level" --every "$sample"

# Cases of the quick table by name, gradients included: several blocks of keys with f32's and Hopper's products, large heads, the
# kernels of bias, slopes and sinks, one kernel per gradient, decode and append. Then one case in $every of all.
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
  step "compute-sanitizer: skipped, it is not installed (it comes with the CUDA toolkit)"
fi

if "$python" -c 'import pytest, torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  export ROCFLASH_LIBRARY=${ROCFLASH_LIBRARY:-$PWD/build/lib/librocflash.so}
  export PYTHONPATH=$PWD/python:$PWD/python/flash-attn:$PWD/python/flash-attn-3${PYTHONPATH:+:$PYTHONPATH}
  step "Python: flash_attn and rocflash on CUDA tensors, with gradients"
  "$python" -m pytest -q tests/python/test_gpu*.py
  step "a small transformer, 200 steps, on the card and on the CPU, with rocflash and with torch's attention"
  "$python" -m pytest -q tests/python/test_training.py
  "$python" tests/python/test_training.py --device cuda
  step "done"
else
  step "Python: skipped, $python has no pytest, or no torch that can use the card (PYTHON names another)"
fi
