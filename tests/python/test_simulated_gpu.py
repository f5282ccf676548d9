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


def run(arch: str, script: Path, *words: str) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "ROCFLASH_HIP_LIBRARY": str(SIMULATOR),
        "ROCFLASH_SIM_ARCH": arch,
        "ROCFLASH_SIM_DEVICES": "2",
    }
    return subprocess.run(
        [sys.executable, str(script), *words], env=environment, capture_output=True, text=True
    )


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.parametrize("arch", ["gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_arrays_on_two_devices(arch: str) -> None:
    if arch not in BUILT:
        pytest.skip(f"this library has no kernels for {arch}")
    done = run(arch, Path(__file__).with_name("simulated_gpu.py"))
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stdout + done.stderr


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.skipif("gfx942" not in BUILT, reason="this library has no kernels for gfx942")
def test_the_benchmark_of_calls() -> None:
    """It checks its results, too."""
    script = Path(__file__).parents[2] / "bench" / "call_overhead.py"
    done = run("gfx942", script, "--device", "simulated", "--rounds", "1", "--seqlen", "4")
    assert done.returncode == 0 and "forward, simulated: library" in done.stdout, done.stderr


SMALL = ("--seq-len", "20", "--batch-size", "1", "--num-heads", "1", "--head-dim", "32")
GUIDE = {
    "gfx942": ("verify_flash_attn.py", "cpu", *SMALL),
    "gfx1100": (
        "benchmark_flash_attn.py",
        "cpu",
        "--seq-lens",
        "24",
        *SMALL[2:],
        "--num-runs",
        "1",
    ),
}


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.parametrize(("arch", "words"), GUIDE.items(), ids=list(GUIDE))
def test_programs_of_the_guide(arch: str, words: tuple[str, ...]) -> None:
    """In f32, as the guide has them."""
    if arch not in BUILT:
        pytest.skip(f"this library has no kernels for {arch}")
    here = Path(__file__)
    done = run(
        arch, here.with_name("simulated_gpu.py"), str(here.parents[2] / words[0]), *words[1:]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "float32" in done.stdout and "launches on the simulated GPU" in done.stdout
    assert "verified" in done.stdout or "Max Difference: 0.00000" in done.stdout, done.stdout
