"""ptxas logs of kernels: which messages are failures."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import ptxas_log
import pytest

SCRIPT = Path(ptxas_log.__file__)
PTX = """.version 8.0
.target sm_90a
.extern .shared .b8 memory[];
.visible .entry first(
	.param .u64 a
)
.maxntid 384, 1, 1
{
	{ .reg .pred p; }
	ret;
}
.global .b8 table[4];
.visible .entry second(
)
{
	ret;
}
"""
CLEAN = "ptxas info : 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"


def test_modules_have_one_kernel_and_the_shared_declarations() -> None:
    modules = dict(ptxas_log.kernels(PTX))
    assert list(modules) == ["first", "second"]
    for name, other in (("first", "second"), ("second", "first")):
        assert f".entry {name}(" in modules[name]
        assert f".entry {other}(" not in modules[name]
        assert ".global .b8 table[4];" in modules[name]
        assert modules[name].startswith(".version 8.0")


@pytest.mark.parametrize(
    ("log", "word"),
    [
        (CLEAN + "ptxas info : (C7510) wgmma.mma_async instructions are serialized", "wgmma"),
        (CLEAN + "ptxas info : (C7514) Potential Performance Loss", "wgmma"),
        (CLEAN + "ptxas info : (C7508) setmaxnreg ignored", "wgmma"),
        (CLEAN + "ptxas info : (C7519) inserted", "missing"),
        ("8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads", "spills"),
        ("0 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads", "spills"),
        ("", "no spill report"),
    ],
)
def test_problems(log: str, word: str) -> None:
    found = ptxas_log.problems(log)
    assert len(found) == 1
    assert word in found[0]


def test_a_clean_log_has_no_problems() -> None:
    assert ptxas_log.problems(CLEAN) == []


@pytest.mark.parametrize(("log", "status"), [(CLEAN, 0), (CLEAN + "(C7511)\n", 1)])
def test_status(tmp_path: Path, log: str, status: int) -> None:
    fake = tmp_path / "ptxas"
    fake.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{log}END\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    ptx = tmp_path / "kernels.ptx"
    ptx.write_text(PTX)
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--ptxas", str(fake), str(ptx)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == status, run.stderr
    assert f"2 kernels, {2 * status} with problems" in run.stdout
