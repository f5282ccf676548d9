"""`rocflash.distributed.attention`: exact attention with context parallelism."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .._c import choice
from .._c.options import packed, window_pair
from .._torch.attention import autocast, draw_rng_state
from .._torch.options import check_options, check_tensor
from .._torch.route import is_compiling
from ..errors import InvalidArgument, Unsupported
from . import consistency, operators  # noqa: F401  (registers what is called below)
from .group import Team, team_of
from .layout import NAMES as LAYOUTS
from .layout import Layout
from .paged_kv import gather_paged_kv
from .sequence import positions


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    method: str = "auto",
    layout: Union[str, Layout] = "zigzag",
    length: Optional[int] = None,
    length_k: Optional[int] = None,
    causal: bool = False,
    window: Any = None,
    attention_chunk: int = 0,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    mask: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    cache_batch_idx: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    rng_state: Optional[Tensor] = None,
    generator: Optional[torch.Generator] = None,
    deterministic: bool = False,
    return_lse: bool = False,
    return_weights: bool = False,
    num_splits: int = 0,
    num_threads: int = 0,
    backend: Optional[str] = None,
    check: Optional[bool] = None,
) -> Any:
    """Exact attention of this rank's queries over the keys of all ranks.

    q is (b, rows, h, d), k (b, rows, hk, d), v (b, rows, hk, dv): this rank's rows of the sequence
    by `layout`, as `shard_sequence` returns them; or packed (rows, heads, d) with cu_seqlens of the
    whole sequences.

    group: a ProcessGroup, a DeviceMesh (two dimensions: between and within nodes) or None for the
    default group.
    method: "ring" (ring attention), "ulysses" (all-to-all of heads), "2d" (Ulysses within nodes,
    rings between them) or "auto" (`rocflash.distributed.choose`).
    layout: "zigzag" (balanced for causal masking), "striped", "contiguous", or a Layout.
    length, length_k: rows of q and k on all ranks together; required if ranks hold different
    numbers.
    cu_seqlens, seqused, leftpad_k: of the whole sequences, the same on all ranks.
    mask, bias: this rank's rows x all keys, (b|1, h|1, rows|1, keys|1); of varlen batches
    (sequences|1, h|1, max_seqlen_q|1, max_seqlen_k|1), as in one call on the whole.
    block_table, cache_batch_idx: of this rank's paged KV cache, which holds its rows of the keys;
    no gradients.
    check: compare shapes, dtypes and options between ranks first: True on every call, False never;
    None, by the transport (gloo: every call, NCCL: once per signature) or as
    ROCFLASH_DISTRIBUTED_DEBUG says.

    Other options are those of `rocflash.attention`. Dropout has the random bits of one call with
    the same rng_state. Gradients of sinks, slopes and replicated biases are this rank's share; sum
    them over ranks. return_weights is not supported: no rank has the weights of all keys.

    Returns out (as q, with dv columns); with ``return_lse`` also lse, f32 (b, h, rows) or (h,
    rows), which has gradients too.
    """
    team = team_of(group)
    device = q.device if isinstance(q, Tensor) else torch.device("cpu")
    with _reporting_failures(team, device, check):
        if return_weights:
            raise Unsupported(
                f"return_weights is {return_weights}; it must be False, since no rank has the "
                "weights of all keys"
            )
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, x)
        if not isinstance(layout, (str, Layout)):
            raise InvalidArgument(
                f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}, or a Layout"
            )
        if block_table is not None or cache_batch_idx is not None:
            if cu_seqlens_k is not None:
                raise Unsupported(
                    "cu_seqlens_k is given together with block_table or cache_batch_idx; it must "
                    "be None"
                )
            held = None if length_k is None else positions(length_k, group, layout)
            k, v = gather_paged_kv(
                k, v, int(q.shape[0]), block_table, cache_batch_idx, seqused_k, held
            )
        _check_form(q, k, v, cu_seqlens_q, cu_seqlens_k)
        left, right = window_pair(window)
        if dropout_p and rng_state is None:
            rng_state = draw_rng_state(generator)
        options = packed(
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            leftpad_k=leftpad_k,
            max_seqlen_q=max_seqlen_q or 0,
            max_seqlen_k=max_seqlen_k or 0,
            causal=causal,
            window_left=left,
            window_right=right,
            attention_chunk=attention_chunk,
            mask=mask,
            softmax_scale=softmax_scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            bias=bias,
            sinks=sinks,
            dropout_p=dropout_p,
            rng_state=rng_state,
            deterministic=deterministic,
            num_splits=num_splits,
            num_threads=num_threads,
            backend=choice.for_operator() if backend is None else choice.number_of(backend),
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
        -1 if check is None else int(bool(check)),
        bool(return_lse),
    )
    return (found[0], found[1]) if return_lse else found[0]


def _reporting_failures(team: Team, device: torch.device, check: Optional[bool]) -> Any:
    if is_compiling():
        return nullcontext()
    return consistency.reporting_failures(team, "attention", device, check)


def _check_form(q: Tensor, k: Tensor, v: Tensor, cu_q: Any, cu_k: Any) -> None:
    if (cu_q is None) != (cu_k is None):
        missing = "cu_seqlens_q" if cu_q is None else "cu_seqlens_k"
        raise InvalidArgument(f"{missing} is None, but its counterpart is given; give both")
    packed = cu_q is not None
    form = (
        "(rows, heads, head dimension) with cu_seqlens_q"
        if packed
        else "(b, rows, heads, head dimension)"
    )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != (3 if packed else 4):
            raise InvalidArgument(f"{name} has shape {tuple(x.shape)}; it must be {form}")
    if q.shape[-2] == 0 or k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise InvalidArgument(
            f"k has {k.shape[-2]} heads; q's {q.shape[-2]} heads must be a multiple of them"
        )
