"""Installs the Python modules with their metadata, for packagers of the library:

install_modules.py site-packages                 rocflash and flash-attn
install_modules.py site-packages flash-attn-3    flash-attn-3 only, which depends on rocflash
install_modules.py site-packages flash-attn-4    flash-attn-4 only, likewise

The packager adds the library as rocflash/lib/librocflash.so.0 and the command as
rocflash/bin/rocflash.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

import wheel

OTHERS = {"flash-attn-3": wheel.DROPIN_3, "flash-attn-4": wheel.DROPIN_4}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="the destination")
    parser.add_argument(
        "distribution", nargs="?", choices=("flash-attn", *OTHERS), default="flash-attn"
    )
    arguments = parser.parse_args()
    version = wheel.project(wheel.DROPIN / "pyproject.toml")["version"]
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.distribution == "flash-attn":
            path = wheel.write_stamped(Path(temporary), version, "py3-none-any", {})
        else:
            path = wheel.write_pure(Path(temporary), OTHERS[arguments.distribution])
        with zipfile.ZipFile(path) as archive:
            archive.extractall(arguments.directory)


if __name__ == "__main__":
    main()
