"""Direct calls of the library on torch tensors, without autograd or dispatcher.

Operators, gradients and compilation are in autograd.py, the preparation of calls in plan.py, and
the fast path of simple calls in fast.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._c import abi, frames
from .._c.choice import FROM_CONTEXT, LAST_OF_LIBRARY, current
from .._c.options import APPENDED, CALLERS_NAMES, GRADED, GRADED_AT, TENSORS, Saved
from ..errors import InvalidArgument
from . import external_backends, fast
from .forward_mode import refuse_tangents
from .plan import GRADIENTS, NEGATIVE, RESULTS, current_stream, describe, run, threads


def _graded(o: tuple[Any, ...]) -> dict[str, Any]:
    return {name: o[at] for name, at in zip(GRADED, GRADED_AT)}


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: tuple[Any, ...],
    want_weights: bool = False,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """(out, lse, weights), the latter only if requested. `out` may be a given tensor."""
    if forward_ad._current_level >= 0:
        refuse_tangents("this function", q=q, k=k, v=v, **_graded(o))
    if o[-1] > LAST_OF_LIBRARY:
        return external_backends.forward(q, k, v, o, want_weights, out)
    if out is None and not want_weights:
        found = fast.forward(q, k, v, o)
        if found is not None:
            return found
    tensors = [q, k, v, *o[:TENSORS], out, None, None]
    out, lse, weights = run("forward", (out is None, True, want_weights), tensors, o[TENSORS:])[-3:]
    return out, lse, weights


def infer(
    q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...], want_lse: bool, want_weights: bool
) -> list[Any]:
    """[out, lse, weights], None if not requested, of a call without backward.

    That makes single f32 queries several times faster.
    """
    if forward_ad._current_level >= 0:
        refuse_tangents("this function", q=q, k=k, v=v, **_graded(o))
    if o[-1] > LAST_OF_LIBRARY:
        return list(external_backends.forward(q, k, v, o, want_weights))
    tensors = [q, k, v, *o[:TENSORS], None, None, None]
    return run("infer", (True, want_lse, want_weights), tensors, o[TENSORS:])[-3:]


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
    """(out, lse) of attention over a KV cache after an append (see Append)."""
    if forward_ad._current_level >= 0:
        given = dict(zip((CALLERS_NAMES.get(name, name) for name in APPENDED), append))
        refuse_tangents(
            "attention with a KV cache", q=q, k_cache=k, v_cache=v, **given, **_graded(o)
        )
    if o[-1] > LAST_OF_LIBRARY:
        return external_backends.decode(q, k, v, o, append, rotary_interleaved, out, want_lse)
    found = fast.decode(q, k, v, o, append, out, want_lse)
    if found is not None:
        return found
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
    wanted: tuple[bool, ...] = (),
    into: tuple[Optional[Tensor], ...] = (),
    dlse: Optional[Tensor] = None,
) -> list[Any]:
    """All of GRADIENTS, None if not requested: allocated, or written to the tensors in `into`.

    `wanted` and `into` may be shorter. With `wanted` for all of RESULTS, delta follows. Given
    tensors may have any strides with a contiguous last dimension. `dlse` is the gradient of lse.
    """
    asked = max(len(wanted), len(GRADIENTS))
    if forward_ad._current_level >= 0:
        refuse_tangents(
            "the backward pass", dout=dout, q=q, k=k, v=v, out=out, softmax_lse=lse, dlse=dlse,
            **_graded(o),
        )  # fmt: skip
    if o[-1] > LAST_OF_LIBRARY:
        return external_backends.backward(Saved(dout, q, k, v, out, lse, dlse), o, wanted, into)
    wanted = (*wanted, *(False,) * (len(RESULTS) - len(wanted)))
    others = (None,) * (len(RESULTS) - len(into))
    tensors = [q, k, v, *o[:TENSORS], dout, out, lse, dlse, *into, *others]
    return run("backward", wanted, tensors, o[TENSORS:])[-len(RESULTS) :][:asked]


def _frame_of(named: dict[str, Optional[Tensor]], written: str) -> tuple[frames.Frame, list[Any]]:
    """A frame for a call of a few tensors, and the words of their DLTensors; None if absent."""
    refuse_tangents("this function", **named)
    frame = frames.Frame(len(named))
    words: list[Any] = []
    for label, x in named.items():
        if x is None:
            words.append(None)
            continue
        if x.is_neg():
            raise InvalidArgument(f"{label} {NEGATIVE}")
        dtype, device_of, shape, strides = describe(label, (x.shape, x.stride(), x.dtype, x.device))
        words.append(frame.describe(dtype, device_of, shape, strides, x.data_ptr()))
    device = named[written].device  # type: ignore[union-attr]
    if device.type == "cuda":
        frame.set(abi.Execution, "stream", current_stream(device.index or 0))
    else:
        frame.set(abi.Execution, "num_threads", threads())
    return frame, words


def combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor, lse: Tensor) -> None:
    """Combines partial results (n, b, sq, h, d) and (n, b, h, sq) into out and lse."""
    parts = {"out_partial": out_partial.resolve_neg(), "lse_partial": lse_partial.resolve_neg()}
    frame, words = _frame_of({**parts, "out": out, "lse": lse}, "out")
    frame.combine(*words)


def may_lack_gradients(q: Tensor, o: tuple[Any, ...]) -> bool:
    """Whether to query support of backward before forward runs: the CPU backend has all
    gradients.
    """
    return q.is_cuda or o[-1] > LAST_OF_LIBRARY or o[-1] == FROM_CONTEXT


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    cu_seqlens: Optional[Tensor],
    first: Optional[Tensor],
    interleaved: bool,
    out: Tensor,
) -> None:
    """Rotary embedding of x to out, which may be x."""
    inputs = {
        "x": x if x is out else x.resolve_neg(),
        "cos": cos.resolve_neg(),
        "sin": sin.resolve_neg(),
    }
    lengths = {"cu_seqlens": cu_seqlens, "first": first}
    frame, words = _frame_of({**inputs, **lengths, "out": out}, "out")
    frame.rotate(tuple(words[:-1]), interleaved, words[-1])


def refuse_missing_gradients(q: Tensor, v: Tensor, o: tuple[Any, ...]) -> None:
    """Raises the backend's error if it has no backward for such a call."""
    if o[-1] == FROM_CONTEXT:
        o = (*o[:-1], current())
    if o[-1] > LAST_OF_LIBRARY:
        external_backends.refuse_missing_gradients(q, v, o)
        return
    if not q.is_cuda:
        return
    extras = [
        (name, o[at].dtype)
        for name, at in zip(GRADED, GRADED_AT)
        if o[at] is not None and o[at].requires_grad
    ]
    _query_gradients(q.dtype, q.device, int(q.shape[-1]), int(v.shape[-1]), *extras)


@lru_cache(maxsize=64)  # caches results, not errors
def _query_gradients(
    dtype: torch.dtype,
    device: torch.device,
    d: int,
    dv: int,
    *extras: tuple[str, torch.dtype],
) -> None:
    """Queries the workspace of one query and key of one head, with those options that have
    gradients too.
    """
    frame = frames.Frame(9 + 2 * len(extras))

    def add(kind: Any, name: str, shape: tuple[int, ...], of: torch.dtype) -> None:
        strides = tuple(shape[-1:] * (len(shape) - 1)) + (1,)
        word = frame.describe(*describe(name, (torch.Size(shape), strides, of, device)))
        frame.point(frames.word_of(kind, name), word)

    for name, size in zip("qkv", (d, d, dv)):
        add(abi.Problem, name, (1, 1, 1, size), dtype)
        add(abi.BackwardTensors, f"d{name}", (1, 1, 1, size), dtype)
    for name in ("dout", "out"):
        add(abi.BackwardTensors, name, (1, 1, 1, dv), dtype)
    add(abi.BackwardTensors, "lse", (1, 1, 1), torch.float32)
    for name, of in extras:
        shape = (1, 1, 1, 1) if name == "bias" else (1,)
        add(abi.Problem, name, shape, of)
        add(abi.BackwardTensors, f"d{name}", shape, of if name == "bias" else torch.float32)
    frame.prepare("backward")
    frame.need()
