"""Every shell script of the repository passes shellcheck."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from conftest import ROOT


def scripts() -> list[str]:
    told = subprocess.run(
        ["git", "ls-files", "*.sh", ".ci/run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return told.stdout.split()


@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="shellcheck is not there; scripts/setup.sh installs it"
)
def test_shellcheck() -> None:
    told = subprocess.run(
        ["shellcheck", "-x", *scripts()], cwd=ROOT, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout
