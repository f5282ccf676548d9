#!/usr/bin/env python3
"""Records the timeline of MLA decode on MI300X, which `rocflash bench` does not have.

    record_mla_timeline.py BUILD

BUILD has the library and the simulator. The middle of the recording goes to tests/gpu/timelines;
scripts/docs/timelines.py draws it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import predicted_times

ROOT = Path(__file__).resolve().parents[2]
ARCH, CASE, KERNEL = "gfx942", "decode mla", "decode_mla_f16_576"
BATCH, HEADS, KEYS = 8, 16, 4096


def decode() -> None:
    sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]
    from simulated_gpu import HipArray

    import rocflash

    class Values(HipArray):
        """The first 512 columns of the rows of a latent cache."""

        def __init__(self, rows: HipArray) -> None:
            self.__dict__ = rows.__dict__ | {"shape": (*rows.shape[:-1], 512), "_kept": [rows]}
            self._strides = (ctypes.c_int64 * 4)(KEYS * 576, 576, 576, 1)

        def __dlpack__(self, **kind: Any) -> Any:
            capsule = super().__dlpack__(**kind)
            tensor = self._kept[-1][1].dl_tensor
            tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
            return capsule

    q = HipArray((BATCH, 1, HEADS, 576), "float16")
    rows = HipArray((BATCH, KEYS, 1, 576), "float16")
    assert rocflash.attention(q, rows, Values(rows)).shape == (BATCH, 1, HEADS, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    build = parser.parse_args().build.resolve()
    with tempfile.TemporaryDirectory() as directory:
        timelines = Path(directory)
        os.environ |= {
            "ROCFLASH_LIBRARY": str(build / "lib/librocflash.so"),
            "ROCFLASH_HIP_LIBRARY": str(build / "lib/sim/libamdhip64.so"),
            "ROCFLASH_SIM_ARCH": ARCH,
            "ROCFLASH_SIM_CHECKS": "none",
            "ROCFLASH_SIM_TIME": str(timelines / "times"),
            "ROCFLASH_SIM_TIME_ONLY": "1",  # results are incomplete
            "ROCFLASH_SIM_TIMELINE": str(
                timelines / predicted_times.name_of(ARCH, CASE, "{kernel}")
            ),
        }
        decode()
        print((timelines / "times").read_text())
        predicted_times.keep_timeline(SimpleNamespace(timelines=timelines), ARCH, CASE, KERNEL)


if __name__ == "__main__":
    main()
