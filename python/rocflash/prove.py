"""The former name of rocflash.self_test; `python -m rocflash.prove` runs it."""

from __future__ import annotations

import sys

from ._command import as_command
from .self_test import chosen_device, main, self_test

prove = self_test

__all__ = ["chosen_device", "main", "prove", "self_test"]

if __name__ == "__main__":
    sys.exit(as_command(main))
