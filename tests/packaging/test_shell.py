"""Every shell script of the repository passes shellcheck, and names cases that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, source_files


@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="shellcheck is not there; scripts/setup.sh installs it"
)
def test_shellcheck() -> None:
    scripts = [name for name in source_files() if name.endswith(".sh") or name == ".ci/run"]
    assert "build_rocm.sh" in scripts
    told = subprocess.run(["shellcheck", "-x", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout


def test_cases_for_a_card_are_in_the_table(build: Path) -> None:
    """scripts/verify_cuda.sh runs where there is a card: a name that is not in the quick table would end it there."""
    text = (ROOT / "scripts/verify_cuda.sh").read_text()
    found = re.search(r"^samples=\((.*?)\)$", text, re.DOTALL | re.MULTILINE)
    assert found
    samples = shlex.split(found[1])
    assert len(samples) > 10
    for sample in samples:
        words = [build / "bin/rocflash", "verify", "--filter", sample]
        told = subprocess.run(words, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
