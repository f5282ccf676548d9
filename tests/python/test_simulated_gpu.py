"""The DLPack face on AMD GPUs, by the simulator: two devices of one machine, all checks on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rocflash

SIMULATOR = Path(os.environ.get("ROCFLASH_LIBRARY", "")).parent / "sim" / "libamdhip64.so"
BUILT = [t["arch"] for t in rocflash.targets()]


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.parametrize("arch", ["gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_arrays_on_two_devices(arch: str) -> None:
    if arch not in BUILT:
        pytest.skip(f"this library has no kernels for {arch}")
    environment = {
        **os.environ,
        "ROCFLASH_HIP_LIBRARY": str(SIMULATOR),
        "ROCFLASH_SIM_ARCH": arch,
        "ROCFLASH_SIM_DEVICES": "2",
    }
    script = Path(__file__).with_name("simulated_gpu.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stdout + done.stderr
