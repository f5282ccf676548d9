"""Puts the Python modules of both distributions, with the metadata of flash-attn, into a folder:
install_modules.py site-packages. For packagers who build the library by themselves; it belongs into
rocflash/lib/librocflash.so.0 there, and the command into rocflash/bin/rocflash."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import wheel


def main(place: Path) -> None:
    version = wheel.project(wheel.DROPIN / "pyproject.toml")["version"]
    with tempfile.TemporaryDirectory() as folder:
        made = wheel.write_stamped(Path(folder), version, "py3-none-any", {})
        with zipfile.ZipFile(made) as archive:
            archive.extractall(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
