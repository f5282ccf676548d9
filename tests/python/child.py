"""Runs programs in separate processes, for state that is fixed when a process starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python with other arguments and a changed environment, from the repository's
    root.
    """
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )


def succeeds(code: str) -> None:
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
