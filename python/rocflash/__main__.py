"""`python -m rocflash` is the command `rocflash`."""

import sys

from ._command import main

if __name__ == "__main__":
    sys.exit(main())
