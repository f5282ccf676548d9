"""`python setup.py install`, `develop` and `bdist_wheel`, as other builds of flash attention have
them: pip does the same (packaging/backend.py builds).
"""

import os
import sys

PIP = {
    "install": ["install", "."],
    "develop": ["install", "-e", "."],
    "bdist_wheel": ["wheel", "--no-deps", "--wheel-dir", "dist", "."],
}


def main() -> None:
    command = PIP.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if command is None:
        sys.exit(f"usage: python setup.py {' | '.join(PIP)}; everything else: pip install .")
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    print("python -m pip", *command, flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "pip", *command])


if __name__ == "__main__":
    main()
