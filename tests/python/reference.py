"""Attention written out in torch, and upstream's rule for errors.

`plain` does every step in the inputs' dtype; `exact` does them in a wider one. A result may be off from
`exact` by a small multiple of what `plain` is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor


def visible(sq: int, sk: int, causal: bool, window: Sequence[int]) -> Tensor:
    """(sq, sk): which keys a query sees by position, both ends lined up."""
    left, right = (int(x) for x in window)
    if causal:
        right = 0
    place = torch.arange(sq)[:, None] + sk - sq
    key = torch.arange(sk)[None]
    seen = torch.ones(sq, sk, dtype=torch.bool)
    if left >= 0:
        seen &= key >= place - left
    if right >= 0:
        seen &= key <= place + right
    return seen


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    slopes: Optional[Tensor] = None,
    keep: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    scale: Optional[float] = None,
    sinks: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    exact: bool = True,
) -> tuple[Tensor, Tensor]:
    """(out, weights before dropout) for q (b, sq, h, d), k and v (b, sk, hk, d)."""
    dtype = q.dtype
    if exact:
        wide = torch.float64 if dtype == torch.float32 else torch.float32
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    # The plain version scales the keys: another order of steps, as upstream has it.
    if exact:
        scores = torch.einsum("bthd,bshd->bhts", q * scale, k)
    else:
        scores = torch.einsum("bthd,bshd->bhts", q, k * scale)
    if softcap > 0:
        scores = (scores / softcap).tanh() * softcap
    sq, sk = scores.shape[-2:]
    if slopes is not None:
        place = torch.arange(sq)[:, None] + sk - sq
        distance = (place - torch.arange(sk)[None]).abs()
        slopes = slopes if slopes.dim() == 2 else slopes[None]
        scores = scores - (slopes[..., None, None] * distance).to(scores.dtype)
    seen = visible(sq, sk, causal, window)[None, None]
    if mask is not None:
        seen = seen & mask
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        extra = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, extra), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    weights = weights.masked_fill(~seen.any(-1, keepdim=True), 0.0)
    used = weights
    if keep is not None:
        used = weights.masked_fill(~keep, 0.0)
    out = torch.einsum("bhts,bshd->bthd", used, v / (1 - dropout_p))
    return out.to(dtype), weights.to(dtype)


def check(name: str, got: Tensor, exact: Tensor, plain: Tensor, factor: float, atol: float = 0.0):
    """Upstream's rule: at most `factor` times the error of plain attention."""
    assert not got.isnan().any(), f"{name} has NaN"
    error = (got.double() - exact.double()).abs().max().item() if got.numel() else 0.0
    allowed = (plain.double() - exact.double()).abs().max().item() if got.numel() else 0.0
    assert error <= factor * allowed + atol, f"{name}: error {error:.3g}, plain {allowed:.3g}"


def sample(count: int, seed: int, **axes: Iterable[Any]) -> list[dict[str, Any]]:
    """So many points of the product of all axes, always the same ones; each value turns up."""
    axes = {name: list(values) for name, values in axes.items()}
    everything = [dict(zip(axes, point)) for point in itertools.product(*axes.values())]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    for name, values in axes.items():
        missing = [x for x in values if all(case[name] != x for case in chosen)]
        assert not missing, f"no case has {name} {missing}: another seed or a larger count"
    return chosen


def name_of(case: dict[str, Any]) -> str:
    return "-".join(
        f"{key}{value}".replace("torch.", "").replace(" ", "") for key, value in case.items()
    )


def random_slopes(batch: int, heads: int) -> Tensor:
    return torch.rand(batch, heads) * 0.3


def heads_of(kind: str) -> tuple[int, int]:
    return {"mha": (4, 4), "gqa": (6, 2), "mqa": (4, 1)}[kind]
