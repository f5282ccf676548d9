"""Torch tensors to the library and back: straight calls, without autograd or dispatcher.

Everything that torch does around a call (operators, gradients, compilation) is in _ops.py; how a
call is prepared and repeated is in _plan.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import _abi, _frame, _plan
from ._options import TENSOR_OPTIONS, TENSORS, Options

__all__ = ["TENSOR_OPTIONS", "Append", "Options", "backward", "combine", "decode", "forward"]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: tuple[Any, ...],
    want_lse: bool = True,
    want_weights: bool = False,
    out: Optional[Tensor] = None,
    inference: bool = False,
) -> tuple[Tensor, Any, Any]:
    """(out, lse, weights), None for what is not wanted. `out` may be given to write into.

    With `inference` no backward will follow, which makes single f32 queries several times faster.
    """
    call = "infer" if inference else "forward"
    tensors = [q, k, v, *o[:TENSORS], out, None, None]
    return _plan.run(call, (out is None, want_lse, want_weights), tensors, o[TENSORS:])  # type: ignore[return-value]


class Append(NamedTuple):
    """New keys for a cache, and rotary embedding; the fields are those of the ABI."""

    k_new: Optional[Tensor] = None
    v_new: Optional[Tensor] = None
    cu_seqlens_k_new: Optional[Tensor] = None
    rotary_cos: Optional[Tensor] = None
    rotary_sin: Optional[Tensor] = None
    rotary_seqlens: Optional[Tensor] = None


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: tuple[Any, ...],
    append: Append,
    rotary_interleaved: bool,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of attention over a cache, to which new keys are appended in place first."""
    tensors = [q, k, v, *o[:TENSORS], *append, out, None]
    makes = (out is None, True)
    return _plan.run("decode", makes, tensors, o[TENSORS:], int(rotary_interleaved))  # type: ignore[return-value]


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    o: tuple[Any, ...],
    wanted: tuple[bool, bool, bool, bool] = (False, False, False, False),
    into: tuple[Optional[Tensor], ...] = (None, None, None, None),
) -> list[Any]:
    """[dq, dk, dv, dsinks]: those wanted are made, those given in `into` are written.

    The latter may have any strides but a contiguous last one.
    """
    tensors = [q, k, v, *o[:TENSORS], dout, out, lse, *into]
    return _plan.run("backward", wanted, tensors, o[TENSORS:])


def combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor, lse: Tensor) -> None:
    """Merges parts (n, b, sq, h, d) and (n, b, h, sq) into out and lse."""
    frame = _frame.Frame(4)
    labels = ("out_partial", "lse_partial", "out", "lse")
    words = []
    for label, x in zip(labels, (out_partial, lse_partial, out, lse)):
        signature = (x.shape, x.stride(), x.dtype, x.device, x.layout)
        description = _plan.describe(label, signature)
        words.append(frame.describe(*description, x.data_ptr()))
    if not _plan.THREADS_FIXED:
        frame.set(_abi.Execution, "num_threads", torch.get_num_threads())
    frame.combine(*words)
