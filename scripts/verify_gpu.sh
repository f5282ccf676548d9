# What verify_cuda.sh and verify_hip.sh have in common; they source it in the repository's root.
# shellcheck shell=bash disable=SC2154
#   device   the GPU, such as hip:0
#   level    the level of `rocflash verify`: --quick or --full
#   sample   sampling interval of that level
#   python   a Python with a torch that can use the GPU, and pytest

command=build/bin/rocflash
[[ -x $command ]] || { echo "$0: $command does not exist; build first" >&2; exit 2; }

step() { echo "== [$SECONDS s] $*"; }

# require_device DRIVER: shows the device, or ends with status 0 if its driver is not in use. Then
# DEVICE must not name one, because then it is an error.
require_device() {
  local driver
  if [[ -z ${DEVICE:-} ]]; then
    driver=$("$command" info | sed -n "s/^  $1 *\(used\|not used\) *//p")
    if ! "$command" info | grep -q "^  $1 *used"; then
      echo "$(basename "$0" .sh | tr _ -): skipped, no driver is in use: $driver"
      exit 0
    fi
  fi
  "$command" info --device "$device"
}

verify_device() {
  step "verify: $level on $device, one case in $sample, forward and gradients"
  "$command" verify --device "$device" "$level" --every "$sample"
}

# The Python tests on GPU tensors, including graphs and a second stream, and a training run.
python_tests() {
  if ! "$python" -c 'import pytest, torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    step "Python: skipped, $python has no pytest, or no torch that can use the GPU (set PYTHON to another one)"
    return
  fi
  export ROCFLASH_LIBRARY=${ROCFLASH_LIBRARY:-$PWD/build/lib/librocflash.so}
  export PYTHONPATH=$PWD/python:$PWD/python/flash-attn:$PWD/python/flash-attn-3:$PWD/python/flash-attn-4${PYTHONPATH:+:$PYTHONPATH}
  step "Python: flash_attn and rocflash on GPU tensors, with gradients"
  "$python" -m pytest -q tests/python/test_gpu*.py
  step "a small transformer, 200 steps, on the GPU and on the CPU, with rocflash and with torch's attention"
  "$python" -m pytest -q tests/python/test_training.py
  "$python" tests/python/test_training.py --device cuda
  step "done"
}
