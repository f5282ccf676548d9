"""Every shell script passes shellcheck, and the test cases that scripts name exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, source_files


@pytest.mark.skipif(
    not shutil.which("shellcheck"),
    reason="shellcheck is not installed; scripts/setup.sh installs it",
)
def test_shellcheck() -> None:
    scripts = [name for name in source_files() if name.endswith(".sh") or name == ".ci/run"]
    assert "build_rocm.sh" in scripts
    result = subprocess.run(
        ["shellcheck", "-x", *scripts], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_samples_of_verify_cuda_exist(build: Path) -> None:
    """scripts/verify_cuda.sh runs on machines with a GPU, where an unknown case would stop it."""
    text = (ROOT / "scripts/verify_cuda.sh").read_text()
    found = re.search(r"^samples=\((.*?)\)$", text, re.DOTALL | re.MULTILINE)
    assert found
    samples = shlex.split(found[1])
    assert len(samples) > 10
    for sample in samples:
        command = [build / "bin/rocflash", "verify", "--filter", sample]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


def test_verification_of_an_amd_gpu(build: Path) -> None:
    """make verify-hip on the simulated MI300X; without a GPU it says so and succeeds."""
    if not (build / "lib/sim/libamdhip64.so").exists() or build != ROOT / "build":
        pytest.skip("the simulator is not built in build/")
    environment = {**os.environ, "FULL": "--quick", "SAMPLE": "150", "PYTHON": "false"}
    done = subprocess.run(
        [ROOT / "scripts/verify_hip.sh"],
        env={**environment, "DEVICE": "sim:gfx942"}, capture_output=True, text=True,
    )  # fmt: skip
    if "no kernels for it" in done.stderr:
        pytest.skip("the build has no kernels for gfx942")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MI300X" in done.stdout and "cases passed" in done.stdout
    environment["ROCFLASH_HIP_LIBRARY"] = "/nowhere/libamdhip64.so"
    skipped = subprocess.run(
        [ROOT / "scripts/verify_hip.sh"], env=environment, capture_output=True, text=True
    )
    assert skipped.returncode == 0 and "verify-hip: skipped, no driver is in use" in skipped.stdout
