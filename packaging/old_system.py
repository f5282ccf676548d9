"""Uses an unpacked wheel with whatever Python an old system has: run by scripts/old_system_test.sh with the wheel's folder.

Written for Python 3.6 and newer, older than the package itself is for: there the library is called without it.
"""

import ctypes
import sys


def by_package(place):
    """Attention over NumPy arrays, with the definition in double precision as judge."""
    sys.path.insert(0, place)
    import numpy

    import rocflash

    assert rocflash.__file__.startswith(place), rocflash.__file__
    draw = numpy.random.default_rng(0).standard_normal
    q, k, v = (draw((2, 33, 4, 64)).astype("float32") for _ in range(3))
    found = rocflash.attention(q, k, v, causal=True)
    exact = rocflash.attention(q, k, v, causal=True, backend="reference")
    error = abs(found - exact).max()
    assert error < 1e-5, error
    try:
        rocflash.attention(q, k[:1], v)
    except rocflash.InvalidArgument as refusal:
        print("refused as it should be:", refusal)
    print(rocflash.info())
    print(f"rocflash as a package: largest error {error:.1e}")


def by_library(place):
    library = ctypes.CDLL(place + "/rocflash/lib/librocflash.so.0")
    library.rocflash_version.restype = ctypes.c_char_p
    print("the library alone: version", library.rocflash_version().decode())


if __name__ == "__main__":
    print("Python", sys.version.split()[0])
    (by_package if sys.version_info >= (3, 9) else by_library)(sys.argv[1])
