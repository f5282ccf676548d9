"""Naive attention in torch, and upstream's error bound.

`baseline` computes every step in the inputs' dtype, `exact` in a wider one. The error of a result
against `exact` may be a small multiple of that of `baseline`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor


def visible(sq: int, sk: int, causal: bool, window: Sequence[int]) -> Tensor:
    """(sq, sk): the keys that a query attends to by position, bottom-right aligned."""
    left, right = (int(x) for x in window)
    if causal:
        right = 0
    position = torch.arange(sq)[:, None] + sk - sq
    key = torch.arange(sk)[None]
    attended = torch.ones(sq, sk, dtype=torch.bool)
    if left >= 0:
        attended &= key >= position - left
    if right >= 0:
        attended &= key <= position + right
    return attended


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
    # The baseline scales the keys instead, as in upstream.
    if exact:
        scores = torch.einsum("bthd,bshd->bhts", q * scale, k)
    else:
        scores = torch.einsum("bthd,bshd->bhts", q, k * scale)
    if softcap > 0:
        scores = (scores / softcap).tanh() * softcap
    sq, sk = scores.shape[-2:]
    if slopes is not None:
        position = torch.arange(sq)[:, None] + sk - sq
        distance = (position - torch.arange(sk)[None]).abs()
        slopes = slopes if slopes.dim() == 2 else slopes[None]
        scores = scores - (slopes[..., None, None] * distance).to(scores.dtype)
    attended = visible(sq, sk, causal, window)[None, None]
    if mask is not None:
        attended = attended & mask
    scores = scores.masked_fill(~attended, float("-inf"))
    if sinks is not None:
        extra = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, extra), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    weights = weights.masked_fill(~attended.any(-1, keepdim=True), 0.0)
    used = weights
    if keep is not None:
        used = weights.masked_fill(~keep, 0.0)
    out = torch.einsum("bhts,bshd->bthd", used, v / (1 - dropout_p))
    return out.to(dtype), weights.to(dtype)


def check(
    name: str, got: Tensor, exact: Tensor, baseline: Tensor, factor: float, atol: float = 0.0
):
    """Upstream's rule: at most `factor` times the error of naive attention."""
    assert not got.isnan().any(), f"{name} has NaN"
    error = (got.double() - exact.double()).abs().max().item() if got.numel() else 0.0
    allowed = (baseline.double() - exact.double()).abs().max().item() if got.numel() else 0.0
    assert error <= factor * allowed + atol, f"{name}: error {error:.3g}, baseline {allowed:.3g}"


def sample(count: int, seed: int, **axes: Iterable[Any]) -> list[dict[str, Any]]:
    """`count` deterministic points of the product of all axes; each value occurs."""
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
