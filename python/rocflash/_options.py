"""What a call on torch tensors may be told besides q, k and v, and the checks of Python types.

The C ABI sees numbers and addresses, so only Python can refuse a wrong type.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ._errors import InvalidArgument, Unsupported


class Options(NamedTuple):
    """Everything about a problem but q, k and v; the field order is that of the operators."""

    cu_seqlens_q: Optional[Tensor] = None
    cu_seqlens_k: Optional[Tensor] = None
    seqused_q: Optional[Tensor] = None
    seqused_k: Optional[Tensor] = None
    leftpad_k: Optional[Tensor] = None
    mask: Optional[Tensor] = None
    alibi_slopes: Optional[Tensor] = None
    bias: Optional[Tensor] = None
    sinks: Optional[Tensor] = None
    block_table: Optional[Tensor] = None
    cache_batch_idx: Optional[Tensor] = None
    rng_state: Optional[Tensor] = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    attention_chunk: int = 0
    softmax_scale: Optional[float] = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    deterministic: bool = False
    num_splits: int = 0
    num_threads: int = 0
    backend: int = 0


TENSORS = Options._fields.index("rng_state") + 1  # so many options come first and are tensors
TENSOR_OPTIONS = Options._fields[:TENSORS]
NUMBER_OPTIONS = Options._fields[TENSORS:]
DEFAULT_NUMBERS = tuple(Options())[TENSORS:]

_KINDS: dict[str, type] = {
    "max_seqlen_q": int,
    "max_seqlen_k": int,
    "causal": bool,
    "window_left": int,
    "window_right": int,
    "attention_chunk": int,
    "softmax_scale": float,
    "softcap": float,
    "dropout_p": float,
    "deterministic": bool,
    "num_splits": int,
    "num_threads": int,
    "backend": int,
}
_CHECKS = [(name, _KINDS[name], x) for name, x in zip(NUMBER_OPTIONS, DEFAULT_NUMBERS)]


def check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {type(x).__name__}; it must be a torch.Tensor")
    if x.layout is not torch.strided:
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


def check_numbers(numbers: tuple[Any, ...]) -> None:
    for (name, kind, default), value in zip(_CHECKS, numbers):
        if value is not default:
            check_number(name, value, kind)


def check_options(o: Options) -> None:
    for name, x in zip(TENSOR_OPTIONS, o):
        if x is not None:
            check_tensor(name, x)
    check_numbers(o[TENSORS:])
    refuse_gradients(o.bias, o.alibi_slopes)


def refuse_gradients(bias: Any, alibi_slopes: Any) -> None:
    """There are none of these two, and they are not silently left out."""
    for name, x in (("bias", bias), ("alibi_slopes", alibi_slopes)):
        if getattr(x, "requires_grad", False) and torch.is_grad_enabled():
            raise Unsupported(
                f"{name}: requires a gradient, which is not supported; pass {name}.detach()"
            )
