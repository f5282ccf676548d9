"""Every shell script of the repository passes shellcheck."""

from __future__ import annotations

import shutil
import subprocess

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
