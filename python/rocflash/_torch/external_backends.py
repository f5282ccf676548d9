"""Calls of backends outside of the library (`_backends`): types are checked here, everything else
there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Optional

import torch
from torch import Tensor

from .._c.choice import name_of
from .._c.options import AT, Append, Options, Saved
from . import append as appending
from . import profiling
from .options import check_options, check_tensor
from .plan import GRADIENTS

_MODULES = {"triton": "triton.calls", "ck": "ck"}


def _backend(options: tuple[Any, ...]) -> Any:
    """The module of a backend, imported on first use."""
    return import_module(f"rocflash._backends.{_MODULES[name_of(options[-1])]}")


def _checked(options: tuple[Any, ...], **tensors: Any) -> Any:
    for name, x in tensors.items():
        if x is not None:
            check_tensor(name, x)
    check_options(options)
    return _backend(options)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: tuple[Any, ...],
    want_weights: bool,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    with profiling.recorded("forward"):
        return _checked(o, q=q, k=k, v=v, out=out).forward(q, k, v, o, want_weights, out)


def backward(
    saved: Saved, o: tuple[Any, ...], wanted: tuple[bool, ...], into: tuple[Optional[Tensor], ...]
) -> list[Any]:
    gradients, delta = wanted[: len(GRADIENTS)], wanted[len(GRADIENTS) :]
    with profiling.recorded("backward"):
        found = _checked(o, **saved._asdict()).backward(saved, o, gradients, into)
        return [*found, *(_delta(saved, o) if x else None for x in delta)]


def _delta(saved: Saved, o: tuple[Any, ...]) -> Tensor:
    """The library's delta, which these backends do not output."""
    sums = (saved.dout.float() * saved.out.float()).sum(-1).transpose(-1, -2)
    if saved.dlse is not None:
        sums = sums - saved.dlse.masked_fill(saved.lse == torch.inf, 0.0)
    return sums.mul(1 - o[AT["dropout_p"]]).contiguous()


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: tuple[Any, ...],
    append: tuple[Optional[Tensor], ...],
    rotary_interleaved: bool,
    out: Optional[Tensor],
    want_lse: bool,
) -> tuple[Tensor, Any]:
    """Appends with torch after the backend has validated the call."""
    new, options = Append(*append), Options(*o)
    backend = _checked(o, q=q, k=k, v=v, out=out)
    with profiling.recorded("decode"), torch.no_grad():
        if new.k_new is not None:
            batch = (
                q.shape[0] if options.cu_seqlens_q is None else options.cu_seqlens_q.shape[0] - 1
            )
            appending.check(k, v, new, batch)
            after = options._replace(seqused_k=appending.lengths_after(options, new, batch))
            backend.check(q, k, v, tuple(after))
            q = appending.append(q, k, v, options, new, bool(rotary_interleaved), batch)
            options = after
        found, lse, _ = backend.forward(q, k, v, tuple(options), False, out)
    return found, lse if want_lse else None


def refuse_missing_gradients(q: Tensor, v: Tensor, o: tuple[Any, ...]) -> None:
    _backend(o).refuse_missing_gradients(q, v, o)
