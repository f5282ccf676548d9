"""`rocflash.distributed.attention`: exact attention over sequences that are split between ranks."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from .._c import choice
from .._c.options import packer, window_pair
from .._torch.attention import autocast, draw_rng_state
from .._torch.options import check_options, check_tensor
from .._torch.route import is_compiling
from ..errors import InvalidArgument, Unsupported
from . import agree, operators  # noqa: F401  (registers what is called below)
from .group import Team, team_of
from .layout import Layout, layout_of
from .pages import own_keys
from .sequence import positions

_TAKEN = (
    "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k", "max_seqlen_q", "max_seqlen_k",
    "causal", "window_left", "window_right", "attention_chunk", "mask", "softmax_scale", "softcap",
    "alibi_slopes", "bias", "sinks", "dropout_p", "rng_state", "deterministic", "num_splits", "num_threads",
    "backend",
)
_packed = packer(*_TAKEN)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, group: Any = None, method: str = "auto",
    layout: Union[str, Layout] = "zigzag", length: Optional[int] = None, length_k: Optional[int] = None,
    causal: bool = False, window: Any = None, attention_chunk: int = 0, cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None, seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None, leftpad_k: Optional[Tensor] = None, max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None, mask: Optional[Tensor] = None, softmax_scale: Optional[float] = None,
    softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, bias: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None, block_table: Optional[Tensor] = None,
    cache_batch_idx: Optional[Tensor] = None, dropout_p: float = 0.0, rng_state: Optional[Tensor] = None,
    generator: Optional[torch.Generator] = None, deterministic: bool = False, return_lse: bool = False,
    return_weights: bool = False, num_splits: int = 0, num_threads: int = 0, backend: Optional[str] = None,
    check: Optional[bool] = None,
) -> Any:
    """Exact attention of this rank's rows over the rows of all ranks.

    q is (b, rows, h, d), k (b, rows, hk, d), v (b, rows, hk, dv): the rows of the whole sequence that this rank
    holds by `layout`, as `shard_sequence` cuts them; or packed (rows, heads, size) with cu_seqlens of the whole.

    group: a ProcessGroup, a DeviceMesh (two dimensions: between and within nodes) or None, the world.
    method: "ring" (keys travel), "ulysses" (heads are shared), "2d" (heads within nodes, rings between them) or
    "auto", by `rocflash.distributed.choose`.
    layout: "zigzag" (balanced under causal), "striped", "contiguous", or a Layout.
    length, length_k: rows of all ranks, of q and of k; needed only where ranks hold different numbers.
    cu_seqlens, seqused, leftpad_k: of the whole sequences, the same on all ranks.
    mask, bias: this rank's rows (or 1) by all keys of the whole, (b|1, h|1, rows|1, keys|1); of packed sequences,
    (sequences|1, h|1, max_seqlen_q|1, max_seqlen_k|1) as in the undivided call.
    block_table, cache_batch_idx: of this rank's own pages or cache, which hold its rows of the keys; no gradients of them.
    check: compare shapes and options between ranks first; None: as ROCFLASH_DISTRIBUTED_DEBUG says.
    The others are those of `rocflash.attention`. Dropout has the bits of the undivided call with the same
    rng_state. A gradient of sinks or slopes, and of a bias where ranks have the same of it, is this rank's share; the
    sum over ranks is the whole. return_weights is refused: all keys' weights would be on no rank.

    Returns out (as q with dv columns); with ``return_lse`` also lse, f32 (b, h, rows) or (h, rows).
    """
    team = team_of(group)
    if agree.asked_for(check) and not is_compiling():
        given = {
            **{"q": q, "k": k, "v": v, "method": method, "layout": layout, "length": length},
            **{"length_k": length_k, "causal": causal, "window": window, "softcap": softcap},
            **{"attention_chunk": attention_chunk, "softmax_scale": softmax_scale, "mask": mask},
            **{"bias": bias, "alibi_slopes": alibi_slopes, "sinks": sinks, "dropout_p": dropout_p},
            **{"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "rng_state": rng_state},
            **{"seqused_q": seqused_q, "seqused_k": seqused_k, "leftpad_k": leftpad_k},
            **{"block_table": block_table, "cache_batch_idx": cache_batch_idx},
            **{"deterministic": deterministic, "backend": backend, "return_weights": return_weights},
        }
        keys = k if block_table is None and cache_batch_idx is None else None
        agree.compare(team, "attention", given, _rows_of_all(q, keys, layout, length, length_k, team))
    if return_weights:
        raise Unsupported(
            f"return_weights: {return_weights}; weights of sequences over ranks are on no rank, it must be False"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    if block_table is not None or cache_batch_idx is not None:
        if cu_seqlens_k is not None:
            raise Unsupported("cu_seqlens_k: is given together with a cache's block_table or cache_batch_idx; it must be None")
        held = None if length_k is None else positions(length_k, group, layout)
        k, v = own_keys(k, v, int(q.shape[0]), block_table, cache_batch_idx, seqused_k, held)
    _check_form(q, k, v, cu_seqlens_q, cu_seqlens_k)
    left, right = window_pair(window)
    if dropout_p and rng_state is None:
        rng_state = draw_rng_state(generator)
    options = _packed(
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, max_seqlen_q or 0, max_seqlen_k or 0,
        causal, left, right, attention_chunk, mask, softmax_scale, softcap, alibi_slopes, bias, sinks,
        dropout_p, rng_state, deterministic, num_splits, num_threads,
        choice.for_operator() if backend is None else choice.number_of(backend),
    )
    check_options(options)
    q, k, v = autocast(q, k, v)
    found = torch.ops.rocflash.distributed_forward(
        q,
        k,
        v,
        *options,
        team.group.group_name,
        method,
        layout.spec if isinstance(layout, Layout) else layout,
        -1 if length is None else length,
        -1 if length_k is None else length_k,
    )
    return (found[0], found[1]) if return_lse else found[0]


def _rows(x: Tensor) -> int:
    return int(x.shape[-3])


def _check_form(q: Tensor, k: Tensor, v: Tensor, cu_q: Any, cu_k: Any) -> None:
    if (cu_q is None) != (cu_k is None):
        missing = "cu_seqlens_q" if cu_q is None else "cu_seqlens_k"
        raise InvalidArgument(f"{missing}: is None, but its counterpart is given; give both")
    packed = cu_q is not None
    form = "(rows, heads, head size) with cu_seqlens_q" if packed else "(b, rows, heads, head size)"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != (3 if packed else 4):
            raise InvalidArgument(f"{name}: shape {tuple(x.shape)}; it must be {form}")
    if q.shape[-2] == 0 or k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise InvalidArgument(
            f"k: {k.shape[-2]} heads; q's {q.shape[-2]} heads must be a multiple of them"
        )


def _rows_of_all(
    q: Any, k: Any, layout: Any, length: Optional[int], length_k: Optional[int], team: Team
) -> dict[str, tuple[int, list[int]]]:
    """For the comparison between ranks: rows here, and those that all should have."""
    found = {}
    for name, x, whole in (("q", q, length), ("k", k, length_k or (length if _same(q, k) else None))):
        if isinstance(x, Tensor) and x.dim() >= 3:
            if whole is None:
                whole = layout.length if isinstance(layout, Layout) else _rows(x) * team.size
            try:
                wanted = layout_of(layout, whole, team.size)
            except (InvalidArgument, TypeError):
                continue  # this rank will say so itself, as will all: layouts were compared
            found[name] = (_rows(x), [wanted.rows(n) for n in range(team.size)])
    return found


def _same(q: Any, k: Any) -> bool:
    return isinstance(q, Tensor) and isinstance(k, Tensor) and q.shape[-3:-2] == k.shape[-3:-2]
