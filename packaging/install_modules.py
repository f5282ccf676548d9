"""Puts Python modules with their metadata into a folder, for packagers who build the library by themselves:

install_modules.py site-packages                 rocflash and flash-attn; the library belongs into
                                                 rocflash/lib/librocflash.so.0 there, the command into rocflash/bin/rocflash
install_modules.py site-packages flash-attn-3    flash-attn-3 alone, which needs the other
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

import wheel


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("place", type=Path, help="the folder")
    parser.add_argument(
        "which", nargs="?", choices=("flash-attn", "flash-attn-3"), default="flash-attn"
    )
    arguments = parser.parse_args()
    version = wheel.project(wheel.DROPIN / "pyproject.toml")["version"]
    with tempfile.TemporaryDirectory() as folder:
        if arguments.which == "flash-attn":
            made = wheel.write_stamped(Path(folder), version, "py3-none-any", {})
        else:
            made = wheel.write_pure(Path(folder), wheel.DROPIN_3)
        with zipfile.ZipFile(made) as archive:
            archive.extractall(arguments.place)


if __name__ == "__main__":
    main()
