"""Puts Python modules with their metadata into a folder, for packagers who build the library by themselves:

install_modules.py site-packages                 rocflash and flash-attn; the library belongs into
                                                 rocflash/lib/librocflash.so.0 there, the command into rocflash/bin/rocflash
install_modules.py site-packages flash-attn-3    flash-attn-3 alone, which needs the other
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import wheel


def main(place: Path, which: str = "flash-attn") -> None:
    version = wheel.project(wheel.DROPIN / "pyproject.toml")["version"]
    with tempfile.TemporaryDirectory() as folder:
        if which == "flash-attn":
            made = wheel.write_stamped(Path(folder), version, "py3-none-any", {})
        elif which == "flash-attn-3":
            made = wheel.write_pure(Path(folder), wheel.DROPIN_3)
        else:
            raise SystemExit(
                f"install_modules.py: {which!r}; there are flash-attn and flash-attn-3"
            )
        with zipfile.ZipFile(made) as archive:
            archive.extractall(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
