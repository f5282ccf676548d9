"""Compares the handwritten structs with rocflash.h, like the header test of the Rust crate.

A C program made from Python's own declarations checks sizes, offsets, types and values at compile
time, and the header's text is searched for anything that is missing here.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rocflash import errors
from rocflash._arrays import exchange
from rocflash._c import abi, choice, options
from rocflash._torch import fast

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "include/rocflash/rocflash.h"

STRUCTS = {
    "rocflash_problem": abi.Problem,
    "rocflash_forward_outputs": abi.ForwardOutputs,
    "rocflash_backward_tensors": abi.BackwardTensors,
    "rocflash_append": abi.Append,
    "rocflash_execution": abi.Execution,
    "rocflash_plan_arguments": abi.PlanArguments,
    "rocflash_limits": abi.Limits,
    "rocflash_device": abi.Device,
    "rocflash_driver": abi.Driver,
    "rocflash_target": abi.Target,
    "DLTensor": exchange.DLTensor,
    "DLManagedTensor": exchange.DLManagedTensor,
}
# Structs inside of structs, which Python has as single fields.
INSIDE = {
    ("rocflash_device", "device_type"): "device.device_type",
    ("rocflash_device", "device_id"): "device.device_id",
    ("DLTensor", "device_type"): "device.device_type",
    ("DLTensor", "device_id"): "device.device_id",
    **{("DLTensor", name): f"dtype.{name}" for name in ("code", "bits", "lanes")},
}
# What a type of Python's is in C. A c_void_p is any other pointer.
TYPES: dict[Any, tuple[str, ...]] = {
    abi.TensorPointer: ("const DLTensor*",),
    abi.Flag: ("int32_t",),
    ctypes.c_size_t: ("size_t",),  # the same class as c_uint64
    ctypes.c_int32: ("int32_t", "DLDeviceType"),
    ctypes.c_int64: ("int64_t",),
    ctypes.c_float: ("float",),
    ctypes.c_uint8: ("uint8_t",),
    ctypes.c_uint16: ("uint16_t",),
    ctypes.c_char_p: ("const char*",),
    ctypes.c_void_p: ("void*", "const void*", "const int64_t*", "const float*"),
    ctypes.POINTER(ctypes.c_int64): ("int64_t*",),
}
STATUSES = {
    "ROCFLASH_INVALID_ARGUMENT": errors.InvalidArgument,
    "ROCFLASH_UNSUPPORTED": errors.Unsupported,
    "ROCFLASH_OUT_OF_MEMORY": errors.OutOfMemory,
    "ROCFLASH_DEVICE_ERROR": errors.DeviceError,
    "ROCFLASH_INTERNAL": errors.InternalError,
}
VALUES = {
    "ROCFLASH_OK": 0,
    **{f"ROCFLASH_BACKEND_{name.upper()}": n for name, n in choice.OF_LIBRARY.items()},
    "ROCFLASH_BACKEND_PLAIN": choice.OF_LIBRARY["naive"],  # a former name
    **{
        name: n for name, kind in STATUSES.items() for n, k in errors.by_status.items() if k is kind
    },
    "ROCFLASH_DL_BOOL": abi.DL_BOOL,
    **{"kDLInt": abi.DL_INT, "kDLUInt": abi.DL_UINT, "kDLFloat": abi.DL_FLOAT},
    **{"kDLBfloat": abi.DL_BFLOAT, "kDLCPU": abi.DL_CPU, "kDLCUDA": abi.DL_CUDA},
    "kDLROCM": abi.DL_ROCM,
}
# The functions that Python does not call: their answers are known here.
NOT_CALLED = {"rocflash_status_name", "rocflash_version_number"}


def layout(name: str, struct: Any, keyword: str) -> list[str]:
    lines = [f'{keyword}(sizeof({name}) == {ctypes.sizeof(struct)}, "size of {name}");']
    for field, _ in struct._fields_:
        inside = INSIDE.get((name, field), field)
        offset = getattr(struct, field).offset
        lines.append(f'{keyword}(offsetof({name}, {inside}) == {offset}, "{name}.{field}");')
    return lines


def compile(language: str, lines: list[str], *flags: str) -> subprocess.CompletedProcess:
    default = "c++" if language == "c++" else "cc"
    compiler = os.environ.get("CXX" if language == "c++" else "CC", default)
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    return subprocess.run(
        [compiler, "-fsyntax-only", f"-I{ROOT}/include", *flags, f"-x{language}", "-"],
        input="\n".join(lines),
        text=True,
        capture_output=True,
    )


def test_structs_and_values_match_the_header() -> None:
    lines = ["#include <rocflash/rocflash.h>", "#include <stddef.h>"]
    for name, struct in STRUCTS.items():
        lines += layout(name, struct, "_Static_assert")
        for field, kind in struct._fields_:
            if kind not in TYPES:
                continue  # a struct or a function, whose size was compared
            inside = INSIDE.get((name, field), field)
            cases = ", ".join(f"{c}: 1" for c in TYPES[kind])
            lines.append(
                f"_Static_assert(_Generic((({name}*)0)->{inside}, {cases}, default: 0), "
                f'"type of {name}.{field}");'
            )
    lines += [f'_Static_assert({name} == {n}, "{name}");' for name, n in VALUES.items()]
    done = compile("c", lines, "-std=c11")
    assert done.returncode == 0, done.stderr


def test_a_difference_is_detected() -> None:
    class Other(ctypes.Structure):
        _fields_ = abi.Append._fields_[:-1]

    for struct in (Other, abi.Execution):
        lines = ["#include <rocflash/rocflash.h>", "#include <stddef.h>"]
        done = compile("c", lines + layout("rocflash_append", struct, "_Static_assert"), "-std=c11")
        assert done.returncode != 0


def test_everything_in_the_header_is_declared() -> None:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    found = 0
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", text, flags=re.S):
        fields = [re.findall(r"\w+", line)[-1] for line in body.split(";") if line.strip()]
        ours = [INSIDE.get((name, f), f).partition(".")[0] for f, _ in STRUCTS[name]._fields_]
        assert list(dict.fromkeys(ours)) == fields, name
        found += len(fields)
    for body in re.findall(r"typedef enum \w+ \{(.*?)\}", text, flags=re.S):
        for value in re.findall(r"(ROCFLASH_\w+)", body):
            assert value in VALUES
            found += 1
    source = Path(abi.__file__).read_text() + Path(abi.__file__).with_name("frames.py").read_text()
    source += (Path(abi.__file__).parents[1] / "info" / "__init__.py").read_text()
    for name in re.findall(r"ROCFLASH_API [\w\s*]*?\b(rocflash_\w+)\(", text):
        assert name in NOT_CALLED or name in source, name
        found += 1
    assert found > 80, "the header was not understood"


def test_options_match_the_structs() -> None:
    """One list: every field of the problem is an option, an input, or given otherwise."""
    fields = [name for name, _ in abi.Problem._fields_]
    otherwise = {"struct_size", "q", "k", "v", "window", "dropout_seed", "dropout_offset"}
    more = {"rng_state", "window_left", "window_right", "num_threads", "backend"}
    assert set(fields) - otherwise == set(options.NAMES) - more
    assert options.Append._fields == tuple(
        n for n, t in abi.Append._fields_ if t is abi.TensorPointer
    )
    assert options.packed(causal=True, softcap=2.0) == options.Options(causal=True, softcap=2.0)
    with pytest.raises(TypeError, match="caused"):
        options.packed(caused=True)


def test_structs_of_the_fast_path_match_the_library() -> None:
    """Those of src/api/python.hpp, which no public header has."""
    lines = ["#include <cstddef>", '#include "api/python.hpp"']
    lines += layout("rocflash_interpreter", fast._Interpreter, "static_assert")
    prepared = ("problem", "outputs", "tensors", "append", "execution")
    for name, _ in fast._Prepared._fields_:
        inside = f"structs.{name}" if name in prepared else name
        offset = getattr(fast._Prepared, name).offset
        lines.append(f'static_assert(offsetof(rocflash_prepared, {inside}) == {offset}, "{name}");')
    done = compile("c++", lines, "-std=c++20", f"-I{ROOT}/src", "-Wno-invalid-offsetof")
    assert done.returncode == 0, done.stderr
