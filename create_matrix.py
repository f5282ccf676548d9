#!/usr/bin/env python3
"""The wheel matrix of .github/workflows/build.yml; packaging/create_matrix.py --help has the
options.

main() selects what a release builds: ROCM_MATRIX, other versions in the same form, or False.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGING = Path(__file__).resolve().parent / "packaging"
sys.path.insert(0, str(PACKAGING))
# By its path, because both modules have the same name.
spec = importlib.util.spec_from_file_location("rocm_matrix", PACKAGING / "create_matrix.py")
rocm_matrix = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rocm_matrix)
ROCM_MATRIX = rocm_matrix.ROCM_MATRIX


def main() -> int:
    matrices = {
        # False: a release without stamped wheels for ROCm.
        "rocm": ROCM_MATRIX,
    }
    return rocm_matrix.main(sys.argv[1:], matrices["rocm"])


if __name__ == "__main__":
    sys.exit(main())
