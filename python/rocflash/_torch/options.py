"""Checks of the Python types of arguments: the C ABI gets numbers and addresses, so only Python can
reject a wrong type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._c.options import DEFAULTS, NUMBER_OPTIONS, OPTIONS, TENSOR_OPTIONS, TENSORS
from ..errors import InvalidArgument

is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._dynamo.is_compiling
DEFAULT_NUMBERS = DEFAULTS[TENSORS:]
_STRIDED = torch.strided
_CHECKS = [(option.name, option.kind, option.default) for option in OPTIONS[TENSORS:]]

__all__ = [
    "DEFAULT_NUMBERS",
    "NUMBER_OPTIONS",
    "as_int32",
    "check_number",
    "check_numbers",
    "check_options",
    "check_tensor",
    "real",
]


def check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} has type {type(x).__name__}; it must be a torch.Tensor")
    if x.layout is not _STRIDED:
        raise InvalidArgument(f"{name} has layout {x.layout}; it must be torch.strided")


def as_int32(name: str, x: Any, may_read: bool = True) -> Tensor:
    """Lengths or offsets of another integer type as int32, which the library requires, without
    wraparound.

    On the CPU values out of range are rejected. On a GPU, while a compiler traces, or if the caller
    must not read values, they are clamped, so that they stay out of range.
    """
    check_tensor(name, x)
    if x.dtype is torch.int32:
        return x
    if x.dtype is not torch.int64:
        if x.dtype in (torch.int8, torch.int16, torch.uint8):
            return x.int()
        raise InvalidArgument(f"{name} has dtype {x.dtype}; it must be int32 or int64")
    if (
        may_read
        and x.is_cpu
        and type(x) in (Tensor, torch.nn.Parameter)
        and not is_compiling()
        and x.numel()
    ):
        low, high = (int(n) for n in x.aminmax())
        if low < -(2**31) or high >= 2**31:
            value = low if low < -(2**31) else high
            raise InvalidArgument(f"{name} is {value}; its values must be 0 to 2**31 - 1")
        return x.int()
    return x.clamp(-(2**31), 2**31 - 1).int()


def check_number(name: str, x: Any, kind: type) -> None:
    """Rejects values that are not numbers of an option's type."""
    if kind is bool:
        fits = isinstance(x, (bool, int)) and x in (0, 1)
    elif kind is int:
        fits = isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool)
    else:
        fits = isinstance(x, (int, float, torch.SymInt, torch.SymFloat))
        fits = fits and not isinstance(x, bool)
    if not fits:
        words = {bool: "True or False", int: "an integer", float: "a number"}[kind]
        raise TypeError(f"{name} is {x!r} ({type(x).__name__}); it must be {words}")


def real(name: str, value: Any) -> Any:
    """A number from a value that converts to one: a NumPy scalar, a tensor with one element."""
    if isinstance(value, (int, float, str, bytes, torch.SymInt, torch.SymFloat)):
        return value  # checked where it is used
    if getattr(value, "requires_grad", False):
        raise InvalidArgument(
            f"{name} requires a gradient, which attention does not give; multiply q by it instead"
        )
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        words = f"{name} is {value!r} ({type(value).__name__}); it must be a number"
        raise TypeError(words) from error


def check_numbers(numbers: tuple[Any, ...]) -> None:
    for (name, kind, default), value in zip(_CHECKS, numbers):
        if value is not default:
            check_number(name, value, kind)


def check_options(o: Any) -> None:
    """Of all options, an `Options` or a tuple in its order."""
    for name, x in zip(TENSOR_OPTIONS, o):
        if x is not None:
            check_tensor(name, x)
    check_numbers(o[TENSORS:])
