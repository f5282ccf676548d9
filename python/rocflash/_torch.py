"""Torch tensors to the library and back: straight calls, without autograd or dispatcher.

Everything that torch does around a call (operators, gradients, compilation) is in _ops.py; how a
call is prepared and repeated is in _plan.py, and the short cut for plain calls in _direct.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from torch import Tensor

from . import _abi, _direct, _frame
from ._errors import InvalidArgument
from ._options import TENSORS
from ._plan import NEGATIVE, describe, run, threads


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: tuple[Any, ...],
    want_weights: bool = False,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """(out, lse, weights), the latter only if wanted. `out` may be given to write into."""
    if out is None and not want_weights:
        found = _direct.forward(q, k, v, o)
        if found is not None:
            return found
    tensors = [q, k, v, *o[:TENSORS], out, None, None]
    out, lse, weights = run("forward", (out is None, True, want_weights), tensors, o[TENSORS:])[-3:]
    return out, lse, weights


def infer(
    q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...], want_lse: bool, want_weights: bool
) -> list[Any]:
    """[out, lse, weights], None for what is not wanted, where no backward will follow.

    That makes single f32 queries several times faster.
    """
    tensors = [q, k, v, *o[:TENSORS], None, None, None]
    return run("infer", (True, want_lse, want_weights), tensors, o[TENSORS:])[-3:]


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
    append: tuple[Optional[Tensor], ...],
    rotary_interleaved: bool,
    out: Optional[Tensor] = None,
    want_lse: bool = True,
) -> tuple[Tensor, Any]:
    """(out, lse) of attention over a cache, to which new keys (see Append) are appended first."""
    tensors = [q, k, v, *o[:TENSORS], *append, out, None]
    makes = (out is None, want_lse)
    out, lse = run("decode", makes, tensors, o[TENSORS:], int(rotary_interleaved))[-2:]
    return out, lse


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
    return run("backward", wanted, tensors, o[TENSORS:])[-4:]


def combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor, lse: Tensor) -> None:
    """Merges parts (n, b, sq, h, d) and (n, b, h, sq) into out and lse."""
    out_partial, lse_partial = out_partial.resolve_neg(), lse_partial.resolve_neg()
    frame = _frame.Frame(4)
    labels = ("out_partial", "lse_partial", "out", "lse")
    words = []
    for label, x in zip(labels, (out_partial, lse_partial, out, lse)):
        if x.is_neg():
            raise InvalidArgument(f"{label}: {NEGATIVE}")
        description = describe(label, (x.shape, x.stride(), x.dtype, x.device))
        words.append(frame.describe(*description, x.data_ptr()))
    frame.set(_abi.Execution, "num_threads", threads())
    frame.combine(*words)
