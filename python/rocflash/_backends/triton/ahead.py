"""Ahead-of-time compilation of the kernels, which needs no GPU: Triton's compiler without its
launcher.

`compiled` returns the code object of one launch and its arguments; a caller can load and launch
them with a driver, or with the project's simulator through HIP's API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import tiles
from .launch import Launch, kernels

_POINTERS = {
    "torch.float16": "*fp16",
    "torch.bfloat16": "*bf16",
    "torch.float32": "*fp32",
    "torch.int32": "*i32",
}


class Compiled(NamedTuple):
    image: bytes  # AMD's code object, or NVIDIA's
    name: str
    threads: int
    shared: int  # bytes
    values: list[
        Any
    ]  # ctypes values in the order of the kernel's parameters; pointers as addresses
    programs: int


def _leaves(value: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    if isinstance(value, tuple):
        for n, x in enumerate(value):
            yield from _leaves(x, (*path, n))
    else:
        yield path, value


def _type(value: Any) -> str:
    """Triton's name of an argument's type, as in its launcher."""
    if value is None:
        return "constexpr"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return _POINTERS[str(value.dtype)]


def _types(value: Any) -> Any:
    """The types of a tuple's fields; fields equal to 1 become constants, as in Triton's
    launcher.
    """
    if not isinstance(value, tuple):
        return _type(value)
    return type(value)(*("constexpr" if x is None or _is_one(x) else _types(x) for x in value))


def _is_one(value: Any) -> bool:
    return isinstance(value, int) and value == 1


def _is_even(value: Any) -> bool:
    """Whether a pointer is aligned to 16 bytes, or a stride a multiple of 16: then wide loads are
    possible.
    """
    if isinstance(value, int):
        return value % 16 == 0
    return hasattr(value, "data_ptr") and value.data_ptr() % 16 == 0


def _value(value: Any) -> Any:
    kind = _type(value)
    if kind.startswith("*"):
        return ctypes.c_void_p(value.data_ptr())
    return {"fp32": ctypes.c_float, "i32": ctypes.c_int32, "i64": ctypes.c_int64}[kind](value)


def compiled(launch: Launch, tile: tiles.Tile, arch: str) -> Compiled:
    """One launch for a target: gfx942 and other AMD GPUs, or sm_90 and other NVIDIA GPUs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = kernels()[launch.kernel]
    constants = launch.compiled_for(tile)
    signature: dict[str, Any] = {}
    constant_values: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    values = []
    for n, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], constant_values[(n,)] = "constexpr", constants[name]
            continue
        signature[name] = _types(launch.arguments[name])
        for path, x in _leaves(launch.arguments[name], (n,)):
            if x is None or (_is_one(x) and len(path) > 1):
                constant_values[path] = x
                continue
            values.append(_value(x))
            if _is_even(x) and (
                len(path) > 1 or not isinstance(x, int)
            ):  # separate numbers change between calls
                attributes[path] = [["tt.divisibility", 16]]
    amd = arch.startswith("gfx")
    wave = 64 if arch.startswith("gfx9") else 32
    made = triton.compile(
        ASTSource(kernel, signature, constant_values, attributes),
        target=GPUTarget("hip", arch, wave)
        if amd
        else GPUTarget("cuda", int(arch.removeprefix("sm_")), 32),
        options={"num_warps": tile.warps, "num_stages": tile.stages},
    )
    values += [ctypes.c_void_p(0)] * 2  # Triton's scratch pointers, unused here
    threads = wave * tile.warps
    image = made.asm["hsaco" if amd else "cubin"]
    return Compiled(
        image, made.metadata.name, threads, made.metadata.shared, values, launch.programs(tile)
    )
