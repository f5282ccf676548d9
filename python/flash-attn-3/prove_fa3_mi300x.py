"""prove_fa3 under the name it has on an MI300X; without one it proves what is there."""

import sys

from prove_fa3 import main

if __name__ == "__main__":
    sys.exit(main())
