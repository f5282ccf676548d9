"""The state of long work on standard error, as the command prints it: a bar on a terminal, a line
every ten seconds in a log, nothing when quiet.
"""

from __future__ import annotations

import sys
import time
from typing import Optional, TextIO

_INTERVAL, _WIDTH = 10.0, 20


class Progress:
    def __init__(self, total: int, quiet: bool = False, to: Optional[TextIO] = None) -> None:
        self._total, self._quiet, self._to = total, quiet, to or sys.stderr
        self._done, self._start = 0, time.monotonic()
        self._last = self._start - _INTERVAL  # a log has the first step

    def step(self, text: str) -> None:
        """Begins the next of the steps."""
        done, now = self._done, time.monotonic()
        self._done += 1
        if self._quiet:
            return
        if self._to.isatty():
            bar = "#" * (_WIDTH * done // self._total)
            print(
                f"\r\033[K[{bar:<{_WIDTH}}] {100 * done // self._total:3}% {text}",
                end="",
                file=self._to,
                flush=True,
            )
        elif now - self._last >= _INTERVAL:
            self._last = now
            print(f"[{now - self._start:.0f} s] {text}", file=self._to, flush=True)

    def close(self) -> None:
        if self._done and not self._quiet and self._to.isatty():
            print("\r\033[K", end="", file=self._to, flush=True)
