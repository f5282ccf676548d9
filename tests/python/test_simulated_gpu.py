"""The DLPack interface on AMD GPUs in the simulator: two devices, with all checks."""

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


ROOT = Path(__file__).parents[2]


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
def test_benchmark_of_call_overhead() -> None:
    """It checks its results, too."""
    script = Path(__file__).parents[2] / "benchmarks" / "call_overhead.py"
    done = run_program(str(script), "--device", "sim:gfx942", "--rounds", "1", "--seqlen", "4")
    assert done.returncode == 0 and "forward, simulated: library" in done.stdout, done.stderr


def run_program(*words: str) -> subprocess.CompletedProcess:
    """A program of the repository, without variables of the simulator."""
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


SMALL = ("--seq-len", "20", "--batch-size", "1", "--num-heads", "1", "--head-dim", "32")
GUIDE = {
    "gfx942": ("verify_flash_attn.py", "--device", "sim:gfx942", *SMALL),
    "gfx1100": (
        "benchmark_flash_attn.py",
        "sim:gfx1100",
        "--seq-lens",
        "24",
        *SMALL[2:],
        "--num-runs",
        "1",
    ),
}


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.parametrize(("arch", "words"), GUIDE.items(), ids=list(GUIDE))
def test_guide_programs(arch: str, words: tuple[str, ...]) -> None:
    """In f32, as the guide has them."""
    if arch not in BUILT:
        pytest.skip(f"this library has no kernels for {arch}")
    done = run_program(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "float32" in done.stdout and f"sim:{arch}" in done.stdout
    assert "verified" in done.stdout or "Max Difference: 0.00000" in done.stdout, done.stdout


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.skipif("gfx942" not in BUILT, reason="this library has no kernels for gfx942")
def test_fa3_self_test_on_the_simulated_mi300x() -> None:
    """The lines of the guide's document, and success without an MI300X in this machine."""
    done = run_program("prove_fa3_mi300x.py", "--device", "sim:gfx942")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert "MI300X" in lines["device name"] and lines["device gfx arch"].startswith("gfx942")
    assert lines["flash-attn backend symbol"]
    for part in ("forward", "backward"):
        assert f"FA3 {part} success on sim:gfx942" in done.stdout


def test_unknown_simulated_devices_are_named() -> None:
    """With what the simulator has, or how to get one."""
    done = run_program("-m", "rocflash.self_test", "--device", "sim:gfx900")
    assert done.returncode == 2 and "device is 'sim:gfx900'" in done.stderr, done.stderr
    assert "known: " in done.stderr or "ROCFLASH_SIM_LIBRARY" in done.stderr, done.stderr


def test_simulated_launches_are_counted() -> None:
    """The block really launches kernels, and afterwards calls run on the CPU again."""
    if not SIMULATOR.exists() or "gfx942" not in BUILT:
        pytest.skip("the simulator or its kernels are not built")
    code = (
        "import rocflash.self_test as s, torch, rocflash\n"
        "device = s.resolve_device('sim:gfx942')\n"
        "from rocflash._torch.simulated import on_simulator\n"
        "q = torch.randn(1, 5, 1, 64).half()\n"
        "with on_simulator() as launches:\n"
        "    there = rocflash.attention(q, q, q)\n"
        "count = len(launches)\n"
        "here = rocflash.attention(q, q, q)\n"
        "assert count == len(launches) == 1 and (here - there).abs().max() < 1e-2\n"
    )
    done = run_program("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"])
def test_decode_reads_its_cache_once(arch: str, tmp_path: Path) -> None:
    """16 bytes per lane, hardly a byte more than the cache has, and two waves per SIMD."""
    if arch not in BUILT:
        pytest.skip(f"this library has no kernels for {arch}")
    log, keys, heads, size = tmp_path / "counters", 4096, 1, 128
    words = [
        "bench", "--op", "decode", "--device", "hip:0", "--repeat", "1", "--dtype", "bf16",
        "--batch", "1",
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
    # The baseline read next to it, in every size of its grid.
    reads = [c for c in launches if c["kernel"] == "read_memory_f32"]
    assert reads and all(c["global_load_bytes"] == cache for c in reads)
    assert all(c["memory_instructions"] == {"load_b128": cache // 16 // lanes} for c in reads)
