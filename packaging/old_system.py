"""Tests an unpacked wheel with the Python of an old distribution.

scripts/old_system_test.sh runs it with the wheel's directory.

Written for Python 3.6, which is older than the package supports. There the library is called
through ctypes.
"""

import ctypes
import sys


def test_package(directory):
    """Attention over NumPy arrays, compared with the double-precision reference."""
    sys.path.insert(0, directory)
    import numpy

    import rocflash

    assert rocflash.__file__.startswith(directory), rocflash.__file__
    draw = numpy.random.default_rng(0).standard_normal
    q, k, v = (draw((2, 33, 4, 64)).astype("float32") for _ in range(3))
    out = rocflash.attention(q, k, v, causal=True)
    exact = rocflash.attention(q, k, v, causal=True, backend="reference")
    error = abs(out - exact).max()
    assert error < 1e-5, error
    try:
        rocflash.attention(q, k[:1], v)
    except rocflash.InvalidArgument as error:
        print("rejected as expected:", error)
    print(rocflash.info())
    print(f"Python package: largest error {error:.1e}")


def test_library(directory):
    library = ctypes.CDLL(directory + "/rocflash/lib/librocflash.so.0")
    library.rocflash_version.restype = ctypes.c_char_p
    print("library only: version", library.rocflash_version().decode())


if __name__ == "__main__":
    print("Python", sys.version.split()[0])
    (test_package if sys.version_info >= (3, 9) else test_library)(sys.argv[1])
