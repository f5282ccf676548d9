"""Names of devices in programs: auto, cpu, hip:N (or rocm:N), cuda:N, and sim:ARCH for the
simulator.

The command `rocflash` has the same names (cli/device.cpp).
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import NamedTuple

from ..errors import InvalidArgument, Unsupported
from . import abi

ALLOWED = "auto, cpu, hip:N (or rocm:N), cuda:N or sim:ARCH, such as hip:0 or sim:gfx942"


class DeviceName(NamedTuple):
    kind: str  # auto, cpu, hip, cuda or sim
    index: int | None = None  # type: ignore[assignment]  # of hip and cuda; None: the current one
    arch: str = ""  # of sim


def parse(text: str) -> DeviceName:
    """The parts of a device's name. Raises InvalidArgument."""
    if text in ("auto", "cpu"):
        return DeviceName(text)
    if found := re.fullmatch(r"(hip|rocm|cuda)(?::(\d{1,4}))?", text):
        kind = "hip" if found[1] == "rocm" else found[1]
        return DeviceName(kind, int(found[2]) if found[2] else None)
    if found := re.fullmatch(r"sim:(gfx[0-9a-f]+)", text):
        return DeviceName("sim", 0, found[1])
    raise InvalidArgument(f"device is {text!r}; it must be {ALLOWED}")


SIMULATOR = "amdhip64_7.dll" if os.name == "nt" else "libamdhip64.so"


def simulator_library() -> Path:
    """ROCFLASH_SIM_LIBRARY, else the simulator that was built with the library."""
    named = os.environ.get("ROCFLASH_SIM_LIBRARY")
    return Path(named) if named else abi.library_path().parent / "sim" / SIMULATOR


def start_simulator(arch: str) -> None:
    """Makes the simulator the HIP driver of this process. Call it before any query of GPUs: the
    library opens its drivers once. Raises Unsupported if the simulator or the architecture is not
    available.
    """
    path = simulator_library()
    os.environ["ROCFLASH_SIM_ARCH"] = arch
    try:
        is_simulator = hasattr(ctypes.CDLL(str(path)), "rocflashSimLastReport")
        problem = "" if is_simulator else f"{path} is not a simulator"
    except OSError as error:
        problem = str(error)
    if problem:
        raise Unsupported(
            f"device is 'sim:{arch}', which needs the simulator, but {problem}; build it (make "
            f"build), or set ROCFLASH_SIM_LIBRARY to its {SIMULATOR}"
        )
    os.environ["ROCFLASH_HIP_LIBRARY"] = str(path)
