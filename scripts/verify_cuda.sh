#!/usr/bin/env bash
# Everything that is to be proved on an NVIDIA card: the full verify with gradients, compute-sanitizer on a sample, and the Python
# tests on CUDA tensors, graphs and a second stream among them. Without an NVIDIA driver it says so and does nothing.
#
#   DEVICE=cuda:0    the card
#   EVERY=12         one case in so many of the quick table under each tool of compute-sanitizer
#   FULL=--full      the level of verify
#   PYTHON=python3   a Python with a torch that can use the card, and pytest
set -euo pipefail
cd "$(dirname "$0")/.."

device=${DEVICE:-cuda:0} every=${EVERY:-12} level=${FULL:---full} python=${PYTHON:-python3}
command=build/bin/rocflash
[[ -x $command ]] || { echo "verify_cuda.sh: $command is not there; build first" >&2; exit 2; }

driver=$("$command" info | sed -n 's/^  cuda \(used\|not used\) *//p')
if ! "$command" info | grep -q '^  cuda used'; then
  echo "verify-cuda: skipped, no NVIDIA driver is in use: $driver"
  exit 0
fi
"$command" info

echo "== verify: $level on $device"
"$command" verify --device "$device" "$level"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [[ -n $sanitizer ]]; then
  for tool in memcheck racecheck initcheck; do
    echo "== compute-sanitizer: $tool"
    "$sanitizer" --tool "$tool" --error-exitcode 1 "$command" verify --device "$device" --every "$every" --threads 1
  done
else
  echo "== compute-sanitizer: skipped, it is not installed (it comes with the CUDA toolkit)"
fi

echo "== Python: flash_attn and rocflash on CUDA tensors"
if "$python" -c 'import pytest, torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  ROCFLASH_LIBRARY=${ROCFLASH_LIBRARY:-$PWD/build/lib/librocflash.so} PYTHONPATH=$PWD/python:$PWD/python/flash-attn:$PWD/python/flash-attn-3${PYTHONPATH:+:$PYTHONPATH} \
    "$python" -m pytest -q tests/python/test_gpu*.py
else
  echo "skipped: $python has no pytest, or no torch that can use the card (PYTHON names another)"
fi
