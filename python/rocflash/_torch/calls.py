"""Torch tensors to the library and back: straight calls, without autograd or dispatcher.

What torch does around a call (operators, gradients, compilation) is in autograd.py; how a call is
prepared and repeated is in plan.py, and the short cut for simple calls in fast.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor

from .._c import abi, frames
from .._c.choice import FROM_CONTEXT, LAST_OF_LIBRARY, current
from .._c.options import GRADED, GRADED_AT, TENSORS, Saved
from ..errors import InvalidArgument
from . import elsewhere, fast
from .plan import GRADIENTS, NEGATIVE, current_stream, describe, run, threads


def forward(
    q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...], want_weights: bool = False,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """(out, lse, weights), the latter only if wanted. `out` may be given to write into."""
    if o[-1] > LAST_OF_LIBRARY:
        return elsewhere.forward(q, k, v, o, want_weights, out)
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
    """[out, lse, weights], None for what is not wanted, where no backward will follow.

    That makes single f32 queries several times faster.
    """
    if o[-1] > LAST_OF_LIBRARY:
        return list(elsewhere.forward(q, k, v, o, want_weights))
    tensors = [q, k, v, *o[:TENSORS], None, None, None]
    return run("infer", (True, want_lse, want_weights), tensors, o[TENSORS:])[-3:]


def decode(
    q: Tensor, k: Tensor, v: Tensor, o: tuple[Any, ...], append: tuple[Optional[Tensor], ...],
    rotary_interleaved: bool, out: Optional[Tensor] = None, want_lse: bool = True,
) -> tuple[Tensor, Any]:
    """(out, lse) of attention over a cache, to which new keys (see Append) are appended first."""
    if o[-1] > LAST_OF_LIBRARY:
        return elsewhere.decode(q, k, v, o, append, rotary_interleaved, out, want_lse)
    tensors = [q, k, v, *o[:TENSORS], *append, out, None]
    makes = (out is None, want_lse)
    out, lse = run("decode", makes, tensors, o[TENSORS:], int(rotary_interleaved))[-2:]
    return out, lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, o: tuple[Any, ...],
    wanted: tuple[bool, ...] = (), into: tuple[Optional[Tensor], ...] = (),
) -> list[Any]:
    """All of GRADIENTS, None for some: those wanted are made, those given in `into` are written.

    Both may be the first few. What is given may have any strides but a contiguous last one.
    """
    if o[-1] > LAST_OF_LIBRARY:
        return elsewhere.backward(Saved(dout, q, k, v, out, lse), o, wanted, into)
    wanted = (*wanted, *(False,) * (len(GRADIENTS) - len(wanted)))
    others = (None,) * (len(GRADIENTS) - len(into))
    tensors = [q, k, v, *o[:TENSORS], dout, out, lse, *into, *others]
    return run("backward", wanted, tensors, o[TENSORS:])[-len(GRADIENTS) :]


def _frame_of(named: dict[str, Optional[Tensor]], written: str) -> tuple[frames.Frame, list[Any]]:
    """A frame for a call of a few tensors, and the words where their descriptions begin; None where absent."""
    frame = frames.Frame(len(named))
    words: list[Any] = []
    for label, x in named.items():
        if x is None:
            words.append(None)
            continue
        if x.is_neg():
            raise InvalidArgument(f"{label}: {NEGATIVE}")
        description = describe(label, (x.shape, x.stride(), x.dtype, x.device))
        words.append(frame.describe(*description, x.data_ptr()))
    device = named[written].device  # type: ignore[union-attr]
    if device.type == "cuda":
        frame.set(abi.Execution, "stream", current_stream(device.index or 0))
    else:
        frame.set(abi.Execution, "num_threads", threads())
    return frame, words


def combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor, lse: Tensor) -> None:
    """Merges parts (n, b, sq, h, d) and (n, b, h, sq) into out and lse."""
    parts = {"out_partial": out_partial.resolve_neg(), "lse_partial": lse_partial.resolve_neg()}
    frame, words = _frame_of({**parts, "out": out, "lse": lse}, "out")
    frame.combine(*words)


def may_lack_gradients(q: Tensor, o: tuple[Any, ...]) -> bool:
    """Whether to ask before forward runs: the library's CPU has all gradients."""
    return q.is_cuda or o[-1] > LAST_OF_LIBRARY or o[-1] == FROM_CONTEXT


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Optional[Tensor], first: Optional[Tensor],
    interleaved: bool, out: Tensor,
) -> None:
    """Writes x, its first columns rotated by position, to out, which may be x."""
    inputs = {
        "x": x if x is out else x.resolve_neg(),
        "cos": cos.resolve_neg(),
        "sin": sin.resolve_neg(),
    }
    lengths = {"cu_seqlens": cu_seqlens, "first": first}
    frame, words = _frame_of({**inputs, **lengths, "out": out}, "out")
    frame.rotate(tuple(words[:-1]), interleaved, words[-1])


def refuse_missing_gradients(q: Tensor, v: Tensor, o: tuple[Any, ...]) -> None:
    """Raises the backend's refusal where backward could not follow forward on such a device."""
    if o[-1] == FROM_CONTEXT:
        o = (*o[:-1], current())
    if o[-1] > LAST_OF_LIBRARY:
        elsewhere.refuse_missing_gradients(q, v, o)
        return
    if not q.is_cuda:
        return
    extras = [
        (name, o[at].dtype)
        for name, at in zip(GRADED, GRADED_AT)
        if o[at] is not None and o[at].requires_grad
    ]
    _ask_for_gradients(q.dtype, q.device, int(q.shape[-1]), int(v.shape[-1]), *extras)


@lru_cache(maxsize=64)  # of answers; refusals are asked for again
def _ask_for_gradients(
    dtype: torch.dtype,
    device: torch.device,
    d: int,
    dv: int,
    *extras: tuple[str, torch.dtype],
) -> None:
    """Asks for one query and key of one head, with those options that have gradients too."""
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
