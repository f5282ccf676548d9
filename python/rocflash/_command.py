"""The command `rocflash`: hands over to the program that the wheel carries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).parent / "bin" / "rocflash"
    if not program.exists():
        sys.exit(
            f"rocflash: {program} is not there; this package was built without the command, which "
            "needs CLI11, fmt and nlohmann_json at build time. python -m rocflash.prove works."
        )
    if not os.access(program, os.X_OK):  # installers may drop the executable bit of package data
        program.chmod(program.stat().st_mode | 0o111)
    if sys.argv[1:] == ["info"]:  # the program knows nothing of Python's packages
        from .errors import Error
        from .info import backend_lines, chosen, interface_lines, interfaces

        code = subprocess.call([program, "info"])
        found = interface_lines(interfaces()) or ["none"]
        print("\nPython interfaces", *found, sep="\n  ", flush=True)
        try:
            print("\nPython backend", *backend_lines(chosen()), sep="\n  ", flush=True)
        except Error as error:  # a wrong ROCFLASH_BACKEND
            sys.exit(f"rocflash: {error}")
        sys.exit(code)
    os.execv(program, ["rocflash", *sys.argv[1:]])


if __name__ == "__main__":
    main()
