"""The installed package on Windows: run by scripts/windows_test.sh with its site-packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SITE = sys.argv[1]
sys.path.insert(0, SITE)  # the embeddable package ignores PYTHONPATH

import numpy as np  # noqa: E402

import rocflash  # noqa: E402
from rocflash._c import abi  # noqa: E402
from rocflash._command import program  # noqa: E402


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Naive causal attention in double precision."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    scores[:, :, np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, v)


def main() -> None:
    assert sys.platform == "win32", sys.platform
    assert Path(abi.library_path()) == Path(SITE, "rocflash", "bin", "rocflash.dll")
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((2, 77, 4, 64), dtype=np.float32) for _ in range(3)]
    expected = reference(*inputs)
    error = np.abs(np.asarray(rocflash.attention(*inputs, causal=True)) - expected).max()
    assert error < 1e-5, error
    for threads in ("own", "auto"):  # what Python sets is what the library reads
        os.environ["ROCFLASH_CPU_THREADS"] = threads
        rocflash.attention(*inputs, causal=True)
    os.environ["ROCFLASH_CPU_THREADS"] = "wrong"
    try:
        rocflash.attention(*inputs, causal=True)
    except rocflash.InvalidArgument as found:
        assert "ROCFLASH_CPU_THREADS is 'wrong'" in str(found)
    else:
        raise AssertionError("the library does not read what Python sets")
    command = program()
    assert command is not None
    done = subprocess.run([command, "version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"rocflash {rocflash.__version__}", done
    print(f"rocflash {rocflash.__version__} on Python {sys.version.split()[0]}: attention, command")


if __name__ == "__main__":
    main()
