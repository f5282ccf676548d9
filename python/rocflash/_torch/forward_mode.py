"""Forward-mode AD: the tangents of out and lse, and a check that no function drops a tangent
silently.

The tangents are computed by naive attention: it materializes (b, h, sq, sk) matrices in f32, O(sq ·
sk) memory. The kernels supply which weights are masked and which are dropped, so every option has
the meaning that it has in forward. The formula consists of torch's operators, so that reverse mode
and torch.func can differentiate it again.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._c.options import GRADED, Options
from .._c.shapes import lse_shape, out_shape
from ..errors import Unsupported
from . import append

_functorch = torch._C._functorch
_is_wrapped = getattr(_functorch, "is_functorch_wrapped_tensor", lambda x: False)
_is_enabled = getattr(torch._C, "_is_fwd_grad_enabled", lambda: True)


def has_tangent(*tensors: Any) -> bool:
    """Whether a tensor is dual in torch.autograd.forward_ad and the caller would lose its tangent.

    Inside of torch.autograd.Function torch switches forward mode off: there `jvp` computes the
    tangent.
    """
    if forward_ad._current_level < 0 or not _is_enabled():
        return False
    return any(
        isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    )


def refuse_tangents(function: str, **tensors: Any) -> None:
    """Raises where a tensor has a forward-mode tangent that `function` would drop."""
    if forward_ad._current_level < 0:
        return
    for name, x in tensors.items():
        if has_tangent(x) or (isinstance(x, Tensor) and _is_wrapped(x) and _is_enabled()):
            raise Unsupported(
                f"{name} has a forward-mode tangent; {function} has no jvp, so it must have none "
                "(rocflash.attention "
                "and the functions of flash_attn without a cache have one)"
            )


def raw(x: Any) -> Any:
    """The tensor inside of torch.func's wrappers for derivatives; its data pointer can be read."""
    while isinstance(x, Tensor) and _is_wrapped(x):
        if _functorch.is_batchedtensor(x):
            raise Unsupported(
                "torch.func.vmap maps over tensors of attention; rocflash has no batching rule for "
                "it"
            )
        x = _functorch.get_unwrapped(x)
    return x


def outside_transforms() -> Any:
    """A context in which new tensors are not wrapped by torch.func."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


class _Rows:
    """The rows of a packed or dense tensor as (b, s, heads, size), with the lengths of the
    sequences.
    """

    def __init__(
        self,
        x: Tensor,
        cu: Optional[Tensor],
        used: Optional[Tensor],
        pad: Optional[Tensor],
        longest: int,
    ) -> None:
        self.cu = cu
        batch = x.shape[0] if cu is None else cu.shape[0] - 1
        at = torch.arange(longest, device=x.device)
        lengths = torch.full((batch,), longest, device=x.device) if cu is None else cu.long().diff()
        if used is not None:
            lengths = lengths.minimum(used.long())
        first = torch.zeros_like(lengths) if pad is None else pad.long()
        self.lengths = lengths - first
        self.valid = at < self.lengths[:, None]
        index = first[:, None] + at
        if cu is not None:
            index = index + cu.long()[:-1, None]
        self.index = index.clamp(max=max(x.shape[-3] - 1, 0))

    def gather(self, x: Tensor) -> Tensor:
        """x as f32 (b, heads, s, size), 0 in rows of no sequence."""
        if self.cu is None:
            found = x.gather(1, self.index[..., None, None].expand(-1, -1, *x.shape[2:]))
        else:
            found = x[self.index]
        return torch.where(self.valid[..., None, None], found.float(), 0.0).transpose(1, 2)

    def scatter(self, x: Tensor, total: int) -> Tensor:
        """x (b, heads, s, size) in the layout of the caller, 0 in rows of no sequence."""
        x = torch.where(self.valid[:, None, :, None], x, 0.0).transpose(1, 2)
        if self.cu is None:
            return x
        rows = append.rows_of(x.shape[0], total, self.cu, x.device)
        assert rows.valid is not None
        inside = rows.index < self.lengths[rows.sequence]
        found = x[rows.sequence, rows.index.clamp(max=x.shape[1] - 1)]
        return torch.where((rows.valid & inside)[:, None, None], found, 0.0)


def _softmax(scores: Tensor, visible: Tensor, sinks: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    """(weights, the sink's weight)."""
    scores = scores.masked_fill(~visible, -torch.inf)
    sink = (
        scores.new_full((1, 1, 1, 1), -torch.inf)
        if sinks is None
        else sinks.float()[None, :, None, None]
    )
    highest = scores.amax(-1, keepdim=True).maximum(sink).detach()
    highest = highest.masked_fill(highest == -torch.inf, 0.0)
    weights, of_sink = (scores - highest).exp(), (sink - highest).exp()
    total = weights.sum(-1, keepdim=True) + of_sink
    total = total.masked_fill(total == 0, 1.0)
    return weights / total, of_sink / total


def attention_tangent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    weights: Tensor,
    tangents: tuple[Optional[Tensor], ...],
) -> tuple[Tensor, Tensor]:
    """The tangents of out and lse for those of q, k, v, sinks, bias and slopes. `weights` are those
    of the kernels.
    """
    o = Options(*options)
    dq, dk, dv, dsinks, dbias, dslopes = tangents
    rows_q = _Rows(q, o.cu_seqlens_q, o.seqused_q, None, weights.shape[2])
    rows_k = _Rows(k, o.cu_seqlens_k, o.seqused_k, o.leftpad_k, weights.shape[3])
    if not weights.numel():
        of_lse = q.new_zeros(lse_shape(q.shape), dtype=torch.float32)
        return q.new_zeros(out_shape(q.shape, v.shape)), of_lse
    group = q.shape[-2] // k.shape[-2]

    def keys(x: Tensor) -> Tensor:
        return rows_k.gather(x).repeat_interleave(group, 1)

    a, b, c = rows_q.gather(q), keys(k), keys(v)
    scale = q.shape[-1] ** -0.5 if o.softmax_scale is None else o.softmax_scale
    visible = weights != 0
    scores = scale * (a @ b.mT)
    change = torch.zeros_like(scores)
    if dq is not None:
        change = change + scale * (rows_q.gather(dq) @ b.mT)
    if dk is not None:
        change = change + scale * (a @ keys(dk).mT)
    if o.softcap:
        bent = (scores / o.softcap).tanh()
        scores, change = o.softcap * bent, change * (1 - bent * bent)
    i, j = (torch.arange(n, device=q.device) for n in weights.shape[2:])
    shift = (rows_k.lengths - rows_q.lengths)[:, None, None, None]
    distance = (i[:, None] + shift - j).abs().float()

    def slopes(x: Tensor) -> Tensor:
        return x.float().reshape(-1, q.shape[-2])[..., None, None] * distance

    if o.alibi_slopes is not None:
        scores = scores - slopes(o.alibi_slopes)
        change = change if dslopes is None else change - slopes(dslopes)
    if o.bias is not None:
        scores = scores + o.bias.float()
        change = change if dbias is None else change + dbias.float()
    p, p_sink = _softmax(scores, visible, o.sinks)
    change = torch.where(visible, change, 0.0)
    mean = (p * change).sum(-1, keepdim=True)
    if dsinks is not None:
        mean = mean + p_sink * dsinks.float()[None, :, None, None]
    kept = torch.where(weights.signbit(), 0.0, 1 / (1 - o.dropout_p)) if o.dropout_p else 1.0
    # A key that no query attends to has no influence for all values of its row of v.
    attended = visible.any(-2)[..., None]
    found = (kept * p * (change - mean)) @ torch.where(attended, c, 0.0)
    if dv is not None:
        found = found + (kept * p) @ torch.where(attended, keys(dv), 0.0)
    of_lse = rows_q.scatter(mean, q.shape[-3])[..., 0].transpose(-1, -2)
    return rows_q.scatter(found, q.shape[-3]).to(q.dtype), of_lse.contiguous()


def refuse_missing_tangents(k: Tensor, options: tuple[Any, ...]) -> None:
    """Rejects tangents with KV caches and quantized keys, which have no gradients either."""
    if k.dtype.itemsize == 1:
        raise Unsupported(
            f"k has dtype {k.dtype} with a forward-mode tangent; it must be that of q"
        )
    o = Options(*options)
    for name in ("block_table", "cache_batch_idx"):
        if getattr(o, name) is not None:
            raise Unsupported(f"{name} is given with a forward-mode tangent; it must be None")


assert GRADED == ("sinks", "bias", "alibi_slopes")  # the order of `tangents`
