"""Calls for backends that are no part of the library (`_backends`): types are checked here, the rest by them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Optional

import torch
from torch import Tensor

from .._c.choice import name_of
from .._c.options import Append, Options, Saved
from . import append as appending
from .options import check_options, check_tensor

_MODULES = {"triton": "triton.calls", "ck": "ck"}


def _backend(options: tuple[Any, ...]) -> Any:
    """Its module, imported when it is first asked for."""
    return import_module(f"rocflash._backends.{_MODULES[name_of(options[-1])]}")


def _checked(options: tuple[Any, ...], **tensors: Any) -> Any:
    for name, x in tensors.items():
        if x is not None:
            check_tensor(name, x)
    check_options(options)
    return _backend(options)


def forward(
    q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...], want_weights: bool, out: Optional[Tensor] = None
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    return _checked(o, q=q, k=k, v=v, out=out).forward(q, k, v, o, want_weights, out)


def backward(
    saved: Saved, o: tuple[Any, ...], wanted: tuple[bool, ...], into: tuple[Optional[Tensor], ...]
) -> list[Any]:
    return _checked(o, **saved._asdict()).backward(saved, o, wanted, into)


def decode(
    q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...], append: tuple[Optional[Tensor], ...],
    rotary_interleaved: bool, out: Optional[Tensor], want_lse: bool,
) -> tuple[Tensor, Any]:
    """New keys are written by torch, once the backend has agreed to the rest."""
    new, options = Append(*append), Options(*o)
    backend = _checked(o, q=q, k=k, v=v, out=out)
    with torch.no_grad():
        if new.k_new is not None:
            batch = q.shape[0] if options.cu_seqlens_q is None else options.cu_seqlens_q.shape[0] - 1
            appending.check(k, v, new, batch)
            after = options._replace(seqused_k=appending.lengths_after(options, new, batch))
            backend.check(q, k, v, tuple(after))
            q = appending.append(q, k, v, options, new, bool(rotary_interleaved), batch)
            options = after
        found, lse, _ = backend.forward(q, k, v, tuple(options), False, out)
    return found, lse if want_lse else None


def refuse_missing_gradients(q: Tensor, v: Tensor, o: tuple[Any, ...]) -> None:
    _backend(o).refuse_missing_gradients(q, v, o)
