"""The checks of Python types that torch's callers pass: the C ABI sees numbers and addresses, so only
Python can refuse a wrong type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._c.options import DEFAULTS, NUMBER_OPTIONS, OPTIONS, TENSOR_OPTIONS, TENSORS
from ..errors import InvalidArgument

DEFAULT_NUMBERS = DEFAULTS[TENSORS:]
_STRIDED = torch.strided
_CHECKS = [(option.name, option.kind, option.default) for option in OPTIONS[TENSORS:]]

__all__ = [
    "DEFAULT_NUMBERS",
    "NUMBER_OPTIONS",
    "check_number",
    "check_numbers",
    "check_options",
    "check_tensor",
    "real",
]


def check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {type(x).__name__}; it must be a torch.Tensor")
    if x.layout is not _STRIDED:
        raise InvalidArgument(f"{name}: layout {x.layout}; it must be torch.strided")


def check_number(name: str, x: Any, kind: type) -> None:
    """Refuses what neither is nor turns into the number that an option wants."""
    if kind is bool:
        fits = isinstance(x, (bool, int)) and x in (0, 1)
    elif kind is int:
        fits = isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool)
    else:
        fits = isinstance(x, (int, float, torch.SymInt, torch.SymFloat))
        fits = fits and not isinstance(x, bool)
    if not fits:
        words = {bool: "True or False", int: "an integer", float: "a number"}[kind]
        raise TypeError(f"{name}: {x!r} ({type(x).__name__}); it must be {words}")


def real(name: str, value: Any) -> Any:
    """A number from what turns into one: NumPy's scalars, a tensor of one element."""
    if isinstance(value, (int, float, str, bytes, torch.SymInt, torch.SymFloat)):
        return value  # whoever takes it checks it
    if getattr(value, "requires_grad", False):
        raise InvalidArgument(
            f"{name}: requires a gradient, which attention does not give; multiply q by it instead"
        )
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        words = f"{name}: {value!r} ({type(value).__name__}); it must be a number"
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
