"""The torch side of `rocflash.attention` and of every function that ends there.

What is here happens above the operators: autocast, the drawing of dropout's seed, the checks of
Python types that a C ABI cannot make.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _ops
from ._errors import InvalidArgument, Unsupported
from ._torch import TENSOR_OPTIONS, Options

_LOW, _HIGH = -(2**63), 2**63 - 1


def draw_rng_state(generator: Optional[torch.Generator] = None) -> Tensor:
    """Seed and offset for one dropout pattern, from torch's CPU generator: manual_seed repeats it."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: {type(generator).__name__}; it must be a torch.Generator")
    if generator is not None and generator.device.type != "cpu":
        raise InvalidArgument(f"generator: is on {generator.device}; it must be a CPU generator")
    return torch.randint(_LOW, _HIGH, (2,), generator=generator, dtype=torch.int64, device="cpu")


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    if device not in ("cpu", "cuda"):  # the library will say what it thinks of others
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts f32 inputs under autocast, as torch does for its own attention."""
    dtype = _autocast_dtype(tensors[0].device.type)
    if dtype is None:
        return tensors
    return tuple(x.to(dtype) if x.dtype is torch.float32 else x for x in tensors)


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


_KINDS: dict[str, type] = {
    **{name: Tensor for name in TENSOR_OPTIONS},
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
_CHECKS = [(name, _KINDS[name], default) for name, default in zip(Options._fields, Options())]


def check_options(o: Options) -> None:
    """Python types, which the C ABI cannot see, and gradients that do not exist."""
    for (name, kind, default), value in zip(_CHECKS, o):
        if value is default:
            continue
        if kind is Tensor:
            check_tensor(name, value)
        else:
            check_number(name, value, kind)
    for name, x in (("bias", o.bias), ("alibi_slopes", o.alibi_slopes)):
        if x is not None and x.requires_grad and torch.is_grad_enabled():
            raise Unsupported(
                f"{name}: requires a gradient, which is not supported; pass {name}.detach()"
            )


def _longest(cu_seqlens: Tensor) -> int:
    return int(cu_seqlens.diff().max()) if cu_seqlens.numel() > 1 else 0


def attention_of_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    generator: Optional[torch.Generator],
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    check_tensor("q", q)
    check_tensor("k", k)
    check_tensor("v", v)
    o = Options(*options)
    check_options(o)
    q, k, v = autocast(q, k, v)
    if o.dropout_p and o.rng_state is None:
        o = o._replace(rng_state=draw_rng_state(generator))
    if return_weights or q.is_cuda:  # the library does not look into a GPU's lengths
        least = 1 if q.is_cuda else 0
        if o.cu_seqlens_q is not None and not o.max_seqlen_q:
            o = o._replace(max_seqlen_q=max(least, _longest(o.cu_seqlens_q)))
        if o.cu_seqlens_k is not None and not o.max_seqlen_k:
            o = o._replace(max_seqlen_k=max(least, _longest(o.cu_seqlens_k)))
    return _ops.attend(q, k, v, o, return_weights)
