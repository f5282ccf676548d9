"""The DLPack face on AMD GPUs, by the simulator: two devices of one machine, all checks on."""

from __future__ import annotations

import json
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


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"])
def test_decode_reads_its_cache_once(arch: str, tmp_path: Path) -> None:
    """16 bytes per lane, hardly a byte more than the cache has, and two waves per SIMD."""
    if arch not in BUILT:
        pytest.skip(f"this library has no kernels for {arch}")
    log, keys, heads, size = tmp_path / "counters", 4096, 1, 128
    words = [
        "bench", "--op", "decode", "--device", "hip:0", "--repeat", "1", "--dtype", "bf16", "--batch", "1",
        "--heads", "4", "--kv-heads", str(heads), "--head-dim", str(size), "--seqlen", str(keys),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "ROCFLASH_HIP_LIBRARY": str(SIMULATOR),
        "ROCFLASH_SIM_ARCH": arch,
        "ROCFLASH_SIM_CHECKS": "none",
        "ROCFLASH_SIM_COUNTERS": str(log),
    }
    command = [str(SIMULATOR.parents[2] / "bin" / "rocflash"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    launches = [json.loads(line) for line in log.read_text().splitlines()]
    counted = next(c for c in launches if c["kernel"].startswith("decode_bf16"))
    cache = 2 * keys * heads * size * 2
    assert cache <= counted["global_load_bytes"] <= 1.05 * cache
    wide = counted["memory_instructions"]["load_b128"]
    lanes = 64 if arch in ("gfx90a", "gfx942", "gfx950") else 32
    assert 16 * lanes * wide >= cache
    narrow = sum(n for name, n in counted["memory_instructions"].items() if "load" in name) - wide
    assert narrow <= wide / 20, counted["memory_instructions"]
    assert counted["waves_per_simd"] >= 2 and counted["scratch_bytes"] == 0
    # The plain read beside it, in every size of its grid.
    reads = [c for c in launches if c["kernel"] == "read_memory_f32"]
    assert reads and all(c["global_load_bytes"] == cache for c in reads)
    assert all(c["memory_instructions"] == {"load_b128": cache // 16 // lanes} for c in reads)
