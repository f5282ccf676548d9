#!/usr/bin/env bash
# Verifies an AMD GPU: the full verification with gradients, the self-tests of the interfaces, the
# Python tests on GPU tensors including graphs and a second stream, and a small transformer trained
# on the GPU and on the CPU. Without AMD's driver it reports that and exits. Each step prints the
# elapsed seconds.
#
#   DEVICE=hip:0     the GPU; sim:gfx942 is the simulator
#   FULL=--full      the level of rocflash verify
#   SAMPLE=1         sampling interval of that level (all cases take about half an hour)
#   PYTHON=python3   a Python with ROCm's torch, and pytest
set -euo pipefail
cd "$(dirname "$0")/.."

device=${DEVICE:-hip:0} level=${FULL:---full} sample=${SAMPLE:-1} python=${PYTHON:-python3}
# shellcheck source=scripts/verify_gpu.sh
source scripts/verify_gpu.sh

require_device hip
step "doctor"
"$command" doctor || [[ $device == sim:* ]]
verify_device
python_tests
