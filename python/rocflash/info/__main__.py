"""`python -m rocflash.info` prints `rocflash.info()`; with --json, as JSON."""

from __future__ import annotations

import argparse
import json
import sys

from .._command import as_command
from . import info


def main() -> int:
    words = argparse.ArgumentParser(
        prog="python -m rocflash.info",
        description="Prints devices, kernels and the selected backend.",
    )
    words.add_argument("--json", action="store_true", help="print JSON")
    given = words.parse_args()
    found = info()
    print(json.dumps(found, indent=2) if given.json else found)
    return 0


if __name__ == "__main__":
    sys.exit(as_command(main))
