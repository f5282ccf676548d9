"""FlashAttention-4's interface on every device that the library supports.

Every argument is supported, or rejected by name. `pack_gqa`, `min_seqlen_k`, `seqlen_k_per_split`,
`scheduler_metadata`, `disable_scheduler_metadata` and the tile arguments of the private functions
only affect the scheduling of upstream's kernels; they are validated and have no effect.

Unlike in FlashAttention 2 and 3, the lse of a row without a key is -inf, a missing bound of the
window is None, and functions return (out, lse) always.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from rocflash.dropin import (
    InvalidArgument,
    Unsupported,
    as_int,
    attend,
    backward,
    combine,
    join_qv,
    needs_operator,
    options_of,
    side_by_side,
    with_lengths,
)

from . import _arguments
from ._arguments import (
    SchedulerMetadataTensorsTorch,
    check_hints,
    check_metadata,
    check_tensor,
    refuse,
    window_of,
)
from .block_sparsity import BlockSparseTensorsTorch

__all__ = [
    "SchedulerMetadataTensorsTorch",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "get_scheduler_metadata",
]

_Blocks = Optional[BlockSparseTensorsTorch]

# torch's registry of FA4 unpacks two results up to 2.13; upstream returns four since June 2026.
_FORWARD_RETURNS_TWO = tuple(int(x) for x in torch.__version__.split(".")[:2]) <= (2, 13)


def _with_qv(
    q: Optional[Tensor], k: Optional[Tensor], v: Tensor, qv: Tensor, scale: Optional[float]
) -> tuple[Tensor, Tensor, Tensor, Optional[float]]:
    """(q, k, v, scale) of MLA: scores q.k + qv.v. Without q and k they are qv.v alone."""
    check_tensor("v", v)
    if q is None and k is None:
        check_tensor("qv", qv)
        return qv, v, v, scale
    for name, x in (("q", q), ("k", k)):
        if x is None:
            raise InvalidArgument(f"{name} is None; with qv both q and k must be given, or neither")
        check_tensor(name, x)
    assert q is not None and k is not None
    q, scale = join_qv(q, qv, v, scale)
    return q, *side_by_side(k, v), scale


def _refuse_gradients(**inputs: Any) -> None:
    if torch.is_grad_enabled():
        for name, x in inputs.items():
            if x is not None and x.requires_grad:
                raise Unsupported(
                    f"page_table is given, and {name} requires a gradient; through a paged KV "
                    "cache there are none, so page_table must be None or the call in no_grad"
                )


def _attend(
    q: Any,
    k: Any,
    v: Tensor,
    *,
    qv: Optional[Tensor],
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Any,
    learnable_sink: Optional[Tensor],
    softcap: Optional[float],
    num_splits: int,
    deterministic: bool,
    return_lse: bool,
    page_table: Optional[Tensor] = None,
    **lengths: Any,
) -> tuple[Tensor, Optional[Tensor]]:
    if page_table is not None:
        if lengths["cu_seqlens_k"] is not None:
            raise InvalidArgument(
                "cu_seqlens_k is given with page_table; it must be None, and seqused_k has the "
                "lengths"
            )
        _refuse_gradients(q=q, k=k, v=v, qv=qv, learnable_sink=learnable_sink)
    if qv is not None:
        q, k, v, softmax_scale = _with_qv(q, k, v, qv, softmax_scale)
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    found = attend(
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_of(window_size, causal),
        softcap=softcap or 0.0,
        alibi_slopes=None,
        deterministic=deterministic,
        return_attn_probs=return_lse,
        sinks=_arguments.sinks_of(learnable_sink, q.dtype),
        block_table=page_table,
        num_splits=as_int("num_splits", num_splits),
        **lengths,
    )
    if not return_lse:
        return found, None
    lse = _arguments.lse_of_caller(found[1])
    return found[0], lse if qv is None else lse.transpose(-1, -2)


def flash_attn_func(
    q: Optional[Tensor],
    k: Optional[Tensor],
    v: Tensor,
    qv: Optional[Tensor] = None,
    gather_kv_indices: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (None, None),
    learnable_sink: Optional[Tensor] = None,
    softcap: Optional[float] = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    aux_tensors: Optional[list[Tensor]] = None,
    aux_scalars: Optional[tuple[Any, ...]] = None,
    block_sparse_tensors: _Blocks = None,
    block_sparse_tensors_bwd: _Blocks = None,
    return_lse: bool = False,
) -> tuple[Tensor, Optional[Tensor]]:
    """Attention of q over k and v, with gradients of out and lse.

    q: (b, sq, h, d), f16, bf16 or f32.
    k: (b, sk, hk, d); h is a multiple of hk (MQA, GQA).
    v: (b, sk, hk, dv).
    qv: (b, sq, h, dv), adds qv v^T to the scores, as in MLA; with it q and k may be None.
    gather_kv_indices: not supported; must be None.
    softmax_scale: the factor of the scores; 1 / sqrt(d) unless given, with qv 1 / sqrt(d + dv).
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; None for no
    bound.
    learnable_sink: (h,), one more logit for each head that has weight but no value; it has a
    gradient.
    softcap: 0 or None, or a score s becomes softcap * tanh(s / softcap).
    num_splits: splits of the keys; 0: the library chooses.
    pack_gqa: a hint of upstream, without effect here.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    score_mod, score_mod_bwd, mask_mod, aux_tensors, aux_scalars: functions for CuTe and what they
    read; not supported; must be None.
    block_sparse_tensors, block_sparse_tensors_bwd: not supported; must be None.
    return_lse: whether lse is returned.

    Returns (out (b, sq, h, dv), lse). lse is f32 (b, h, sq), with qv (b, sq, h); None unless
    return_lse. It is -inf in rows without a key.
    """
    refuse(
        gather_kv_indices=gather_kv_indices,
        score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod,
        aux_tensors=aux_tensors,
        aux_scalars=aux_scalars,
        block_sparse_tensors=block_sparse_tensors,
        block_sparse_tensors_bwd=block_sparse_tensors_bwd,
    )
    check_hints(pack_gqa)
    return _attend(
        q,
        k,
        v,
        qv=qv,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        learnable_sink=learnable_sink,
        softcap=softcap,
        num_splits=num_splits,
        deterministic=deterministic,
        return_lse=return_lse,
    )


def flash_attn_varlen_func(
    q: Optional[Tensor],
    k: Optional[Tensor],
    v: Tensor,
    qv: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    min_seqlen_k: Optional[int] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    gather_kv_indices: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = (None, None),
    learnable_sink: Optional[Tensor] = None,
    softcap: Optional[float] = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    block_sparse_tensors: _Blocks = None,
    aux_tensors: Optional[list[Tensor]] = None,
    aux_scalars: Optional[tuple[Any, ...]] = None,
    return_lse: bool = False,
    scheduler_metadata: Optional[SchedulerMetadataTensorsTorch] = None,
    seqlen_k_per_split: Optional[int] = None,
    disable_scheduler_metadata: bool = False,
) -> tuple[Tensor, Optional[Tensor]]:
    """flash_attn_func for sequences of different lengths, packed, padded or in pages.

    q: (total_q, h, d) with cu_seqlens_q, else (b, sq, h, d).
    k, v: (total_k, hk, d) and (total_k, hk, dv) with cu_seqlens_k; pages (pages, page size, hk, d)
    with page_table; else (b, sk, hk, d).
    qv: as q with dv columns, adds qv v^T to the scores, as in MLA; with it q and k may be None.
    cu_seqlens_q, cu_seqlens_k: int32 (b + 1,), the begins of the sequences.
    max_seqlen_q, max_seqlen_k: bounds on the lengths; computed if absent, which synchronizes with
    a GPU.
    min_seqlen_k: a hint of upstream, without effect here.
    seqused_q, seqused_k: int32 (b,), used rows of each sequence.
    gather_kv_indices: not supported; must be None.
    page_table: int32 (b, pages), the pages of each sequence; without gradients.
    softmax_scale: the factor of the scores; 1 / sqrt(d) unless given, with qv 1 / sqrt(d + dv).
    causal: query i attends to keys up to position i + sk - sq (bottom-right aligned).
    window_size: (left, right), the number of keys before and after that position; None for no
    bound.
    learnable_sink: (h,), one more logit for each head that has weight but no value; it has a
    gradient.
    softcap: 0 or None, or a score s becomes softcap * tanh(s / softcap).
    num_splits: splits of the keys; 0: the library chooses.
    pack_gqa: a hint of upstream, without effect here.
    deterministic: gradients are bitwise equal on every run, and possibly slower.
    score_mod, score_mod_bwd, mask_mod, aux_tensors, aux_scalars: functions for CuTe and what they
    read; not supported; must be None.
    block_sparse_tensors: not supported; must be None.
    return_lse: whether lse is returned.
    scheduler_metadata: a result of get_scheduler_metadata; checked, and not needed.
    seqlen_k_per_split, disable_scheduler_metadata: hints of upstream, without effect here.

    Returns (out, lse). out is as q with dv columns. lse is f32 (h, total_q) or (b, h, sq), with qv
    (total_q, h) or (b, sq, h); None unless return_lse. It is -inf in rows without a key.
    """
    refuse(
        gather_kv_indices=gather_kv_indices,
        score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod,
        aux_tensors=aux_tensors,
        aux_scalars=aux_scalars,
        block_sparse_tensors=block_sparse_tensors,
    )
    check_hints(pack_gqa, min_seqlen_k=min_seqlen_k, seqlen_k_per_split=seqlen_k_per_split)
    check_metadata(scheduler_metadata, disable_scheduler_metadata)
    return _attend(
        q,
        k,
        v,
        qv=qv,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        learnable_sink=learnable_sink,
        softcap=softcap,
        num_splits=num_splits,
        deterministic=deterministic,
        return_lse=return_lse,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
    )


def _write(name: str, into: Optional[Tensor], found: Tensor) -> Tensor:
    """Copies without the broadcasts and conversions of copy_."""
    if into is None:
        return found
    check_tensor(name, into)
    if into.shape != found.shape or into.dtype is not found.dtype or into.device != found.device:
        raise InvalidArgument(
            f"{name} is {into.dtype} of shape {tuple(into.shape)} on {into.device}; it must be "
            f"{found.dtype} of shape {tuple(found.shape)} on {found.device}"
        )
    return into.copy_(found)


def _flash_attn_fwd(
    q: Optional[Tensor],
    k: Optional[Tensor],
    v: Tensor,
    qv: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    min_seqlen_k: Optional[int] = None,
    page_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    softcap: Optional[float] = None,
    window_size_left: Optional[int] = None,
    window_size_right: Optional[int] = None,
    learnable_sink: Optional[Tensor] = None,
    tile_mn: Optional[tuple[int, int]] = None,
    mma_pv_is_rs: Optional[bool] = None,
    intra_wg_overlap: Optional[bool] = None,
    num_threads: int = 384,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    _arch: Optional[int] = None,
    score_mod: Any = None,
    mask_mod: Any = None,
    block_sparse_tensors: _Blocks = None,
    return_lse: bool = False,
    out: Optional[Tensor] = None,
    lse: Optional[Tensor] = None,
    aux_tensors: Optional[list[Tensor]] = None,
    aux_scalars: Optional[tuple[Any, ...]] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    gather_kv_indices: Optional[Tensor] = None,
    scheduler_metadata: Optional[SchedulerMetadataTensorsTorch] = None,
    seqlen_k_per_split: Optional[int] = None,
    disable_scheduler_metadata: bool = False,
) -> tuple[Optional[Tensor], ...]:
    """(out, lse, None, None), without autograd; (out, lse) for torch up to 2.13, whose registry
    unpacks two.

    The last two are upstream's P and row max of gathered keys. The tile arguments have no effect.
    lse is None unless return_lse, `lse` is given or an input requires a gradient.
    """
    refuse(
        score_mod=score_mod,
        mask_mod=mask_mod,
        block_sparse_tensors=block_sparse_tensors,
        aux_tensors=aux_tensors,
        aux_scalars=aux_scalars,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        gather_kv_indices=gather_kv_indices,
    )
    check_hints(pack_gqa, min_seqlen_k=min_seqlen_k, seqlen_k_per_split=seqlen_k_per_split)
    check_metadata(scheduler_metadata, disable_scheduler_metadata)
    graded = any(x is not None and x.requires_grad for x in (q, k, v, qv))
    with torch.no_grad():
        found, found_lse = _attend(
            q,
            k,
            v,
            qv=qv,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=(window_size_left, window_size_right),
            learnable_sink=learnable_sink,
            softcap=softcap,
            num_splits=num_splits,
            deterministic=False,
            return_lse=return_lse or lse is not None or graded,
            page_table=page_table,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
        )
        found = _write("out", out, found)
        if found_lse is not None:
            found_lse = _write("lse", lse, found_lse)
    return (found, found_lse) if _FORWARD_RETURNS_TWO else (found, found_lse, None, None)


def _flash_attn_bwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    softcap: Optional[float] = 0.0,
    window_size_left: Optional[int] = None,
    window_size_right: Optional[int] = None,
    m_block_size: int = 64,
    n_block_size: int = 128,
    num_threads: int = 256,
    pack_gqa: Optional[bool] = False,
    num_stages_Q: int = 2,
    num_stages_dO: int = 2,
    SdP_swapAB: bool = False,
    dKV_swapAB: bool = False,
    dQ_swapAB: bool = False,
    AtomLayoutMSdP: int = 2,
    AtomLayoutNdKV: int = 2,
    AtomLayoutMdQ: int = 2,
    V_in_regs: bool = False,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    deterministic: bool = False,
    dq: Optional[Tensor] = None,
    dk: Optional[Tensor] = None,
    dv: Optional[Tensor] = None,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    aux_tensors: Optional[list[Tensor]] = None,
    aux_scalars: Optional[tuple[Any, ...]] = None,
    block_sparse_tensors: _Blocks = None,
    dlse: Optional[Tensor] = None,
    learnable_sink: Optional[Tensor] = None,
) -> tuple[Tensor, ...]:
    """(dq, dk, dv), and dsink if learnable_sink is given. The tile arguments have no effect.

    `dlse` is the gradient of lse. Gradients go into dq, dk and dv where these are given.
    """
    refuse(
        score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod,
        aux_tensors=aux_tensors,
        aux_scalars=aux_scalars,
        block_sparse_tensors=block_sparse_tensors,
    )
    check_hints(pack_gqa)
    named = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "lse": lse}
    for name, x in named.items():
        check_tensor(name, x)
    left, right = window_of((window_size_left, window_size_right), causal)
    options = options_of(
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        max_seqlen_q=as_int("max_seqlen_q", max_seqlen_q),
        max_seqlen_k=as_int("max_seqlen_k", max_seqlen_k),
        causal=causal,
        window_left=left,
        window_right=right,
        softmax_scale=softmax_scale,
        softcap=softcap or 0.0,
        sinks=_arguments.sinks_of(learnable_sink, q.dtype),
        deterministic=deterministic,
    )
    with torch.no_grad():
        if q.is_cuda:
            options = with_lengths(q, options)
        wanted = (True, True, True, learnable_sink is not None)
        saved = (dout, q, k, v, out, _arguments.lse_of_library(lse))
        if needs_operator(q, k, v):
            needed = (*wanted, *(False,) * 3)
            found = torch.ops.rocflash.backward(*saved, *options, needed, dlse)
        else:
            found = backward(*saved, tuple(options), wanted, dlse=dlse)
        names = ("dq", "dk", "dv")
        results = [_write(name, into, x) for name, into, x in zip(names, (dq, dk, dv), found)]
        if learnable_sink is not None:
            results.append(found[3].to(learnable_sink.dtype))
    return tuple(results)


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
    cu_seqlens: Optional[Tensor] = None,
    seqused: Optional[Tensor] = None,
    virtual_batch_idx: Optional[Tensor] = None,
    return_lse: bool = True,
) -> tuple[Tensor, Optional[Tensor]]:
    """Combines the partial results of split-KV. No gradients.

    out_partial: f32, f16 or bf16 (splits, b, sq, h, d), or without b, packed.
    lse_partial: f32 (splits, b, sq, h), or without b, packed.
    out: the tensor for the result; allocated unless given.
    out_dtype: the dtype of an allocated out; that of out_partial unless given.
    cu_seqlens, seqused: int32, the rows in use. Every row is combined, so they are validated only.
    virtual_batch_idx: not supported; must be None.
    return_lse: whether lse is returned.

    Returns (out, lse (b, sq, h), or packed (total, h)); lse is None unless return_lse.
    """
    refuse(virtual_batch_idx=virtual_batch_idx)
    for name, x in (("out_partial", out_partial), ("lse_partial", lse_partial)):
        check_tensor(name, x)
    for name, rows in (("cu_seqlens", cu_seqlens), ("seqused", seqused)):
        if rows is not None:
            check_tensor(name, rows)
            if rows.dtype is not torch.int32 or rows.dim() != 1:
                raise InvalidArgument(
                    f"{name} is {rows.dtype} of shape {tuple(rows.shape)}; it must be int32 of one "
                    "dimension"
                )
    shape = out_partial.shape
    if len(shape) not in (4, 5) or lse_partial.shape != shape[:-1] or shape[0] < 1:
        raise InvalidArgument(
            f"lse_partial has shape {tuple(lse_partial.shape)}; it must be that of out_partial, "
            f"{tuple(shape)}, without the last size, and with at least one split"
        )
    with torch.no_grad():
        dtype = out_dtype or (out_partial.dtype if out is None else out.dtype)
        parts, lses = out_partial.float(), lse_partial.float()
        if len(shape) == 4:
            parts, lses = parts[:, None], lses[:, None]
        found = parts.new_empty(parts.shape[1:], dtype=dtype)
        lse = lses.new_empty((found.shape[0], found.shape[2], found.shape[1]))
        combine(parts, lses.transpose(-1, -2), found, lse)
        lse = _arguments.lse_of_caller(lse).transpose(-1, -2)
        if len(shape) == 4:
            found, lse = found[0], lse[0]
    return _write("out", out, found), lse if return_lse else None


def get_scheduler_metadata(
    max_seqlen_q: int,
    max_seqlen_k: int,
    nheads: int,
    nheads_kv: int,
    headdim: int,
    num_splits: int = 1,
    headdim_v: Optional[int] = None,
    pack_gqa: Optional[bool] = None,
    causal: bool = False,
    window_size_left: Optional[int] = None,
    window_size_right: Optional[int] = None,
    seqlen_k_new: int = 0,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    seqlen_k_per_split: Optional[int] = None,
) -> SchedulerMetadataTensorsTorch:
    """Scheduler metadata for flash_attn_varlen_func. It is unused: the library computes its launch
    plan in each call, within microseconds. The arguments describe that call and are validated.
    """
    check_hints(
        pack_gqa,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        nheads=nheads,
        nheads_kv=nheads_kv,
        headdim=headdim,
        headdim_v=headdim_v,
        num_splits=num_splits,
        seqlen_k_new=seqlen_k_new,
        seqlen_k_per_split=seqlen_k_per_split,
    )
    window_of((window_size_left, window_size_right), causal)
    tensors = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "cu_seqlens_k_new": cu_seqlens_k_new,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "leftpad_k": leftpad_k,
    }
    for name, x in tensors.items():
        if x is not None:
            check_tensor(name, x)
    return SchedulerMetadataTensorsTorch()
