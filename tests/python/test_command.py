"""The command from Python: `python -m rocflash`, its additions, and the habits of all programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from child import python

from rocflash import _command

pytestmark = pytest.mark.skipif(_command.program() is None, reason="the command is not built")
PROGRAMS = [("-m", "rocflash", "info"), ("-m", "rocflash.info")]


def test_module_and_script_are_the_command() -> None:
    version = python("-m", "rocflash", "--version")
    assert version.returncode == 0 and version.stdout == python("-m", "rocflash", "version").stdout
    unknown = python("-m", "rocflash", "verfy")
    assert unknown.returncode == 2 and "did you mean 'verify'?" in unknown.stderr
    assert "--quick" in python("-m", "rocflash", "help", "verify").stdout


def test_info_has_what_concerns_python(tmp_path: Path) -> None:
    """As text and, complete, as JSON."""
    done = python("-m", "rocflash", "info", "--json", str(tmp_path / "info.json"))
    assert done.returncode == 0 and "Python backend" in done.stdout and "GPU drivers" in done.stdout
    written = json.loads((tmp_path / "info.json").read_text())
    printed = json.loads(python("-m", "rocflash", "info", "--json", "-").stdout)
    assert printed == written == json.loads(python("-m", "rocflash", "info", "--json").stdout)
    assert {"version", "devices", "drivers", "targets", "interfaces", "python_backend"} <= set(
        printed
    )
    assert printed["python_backend"]["backend"] == "auto"


def test_module_info_prints_the_report() -> None:
    text = python("-m", "rocflash.info")
    assert text.returncode == 0 and "backend: auto" in text.stdout and text.stderr == ""
    found = json.loads(python("-m", "rocflash.info", "--json").stdout)
    assert found["backend"] == "auto" and found["devices"]


@pytest.mark.parametrize("words", PROGRAMS, ids=" ".join)
def test_failed_writes_and_closed_pipes(words: tuple[str, ...]) -> None:
    root = Path(__file__).parents[2]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, *words], cwd=root, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1 and done.stderr.count("No space left on device") == 1, done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -n 1', "bash", sys.executable, *words],
        cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith("rocflash ") and done.stderr == ""


@pytest.mark.parametrize(
    ("words", "variable", "message"),
    [
        (("-m", "rocflash", "info"), {"ROCFLASH_BACKEND": "quick"}, "ROCFLASH_BACKEND is 'quick'"),
        (("-m", "rocflash.info"), {"ROCFLASH_BACKEND": "quick"}, "ROCFLASH_BACKEND is 'quick'"),
        (("-m", "rocflash.info"), {"ROCFLASH_CPU_ISA": "sse9"}, "ROCFLASH_CPU_ISA is 'sse9'"),
        (("-m", "rocflash", "verify"), {"ROCFLASH_CPU_ISA": "sse9"}, "ROCFLASH_CPU_ISA is 'sse9'"),
        *(
            (words, {"ROCFLASH_CPU_ISA": "sse9"}, "ROCFLASH_CPU_ISA is 'sse9'")
            for words in (
                ("-m", "rocflash", "info"),
                ("-m", "rocflash", "doctor"),
                ("-m", "rocflash.self_test", "cpu"),
                ("-m", "flash_attn_3.self_test", "cpu"),
                ("test_fa3.py", "cpu"),
                ("verify_flash_attn.py", "cpu"),
            )
        ),
    ],
)
def test_invalid_settings_are_one_error(
    words: tuple[str, ...], variable: dict[str, str], message: str
) -> None:
    done = python(*words, **variable)
    assert done.returncode == 1 and done.stderr.count(message) == 1, done.stderr
    assert "Python interfaces" not in done.stdout and "0 errors" not in done.stdout
    assert "Traceback" not in done.stderr
