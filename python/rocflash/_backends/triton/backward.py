"""Backward in three kernels: dout·out of each query; dk and dv, by blocks of keys; dq, by blocks of
queries.

The latter two both recompute the scores, so that nothing is accumulated in memory and results are
deterministic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .device_functions import (
    add_product,
    addresses_in,
    dropout_mask,
    is_visible,
    load_rows,
    modified_scores,
    numbers_of,
    product,
    slope_of,
    span,
    start_of,
    store_rows,
    visible_blocks,
    weights_of,
)
from .forward import CHANGING


@triton.jit(do_not_specialize=CHANGING)
def dout_dot_out(
    dout,
    out,
    delta,
    lengths,
    heads,
    length_q,
    longest_q,
    DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    blocks = tl.cdiv(longest_q, BLOCK_M)
    head, n = tl.program_id(0) // blocks % heads.count, tl.program_id(0) // blocks // heads.count
    first_q, sq = span(lengths.cu_q, lengths.used_q, None, n, length_q)
    begin_i = tl.program_id(0) % blocks * BLOCK_M
    if begin_i >= sq:
        return
    i = begin_i + tl.arange(0, BLOCK_M)
    g = load_rows(
        start_of(dout, n, head, first_q), dout.row, begin_i, sq, DV, BLOCK_M, BLOCK_DV, False
    )
    o = load_rows(
        start_of(out, n, head, first_q), out.row, begin_i, sq, DV, BLOCK_M, BLOCK_DV, False
    )
    found = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(numbers_of(delta, n, head, first_q) + i, found, mask=i < sq)


@triton.jit
def add_queries(
    of_keys, of_values, y, z, q, dout, highest, log_total, delta, n, head_k, first_q, begin, end, j,
    first_j, sq, sk,
    heads, score, bounds, dropout, key_0, key_1, offset,
    MASKED: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Accumulates dk / scale and dv of the keys j over queries begin to end of all heads that share
    them.

    Tiles are (keys, queries). Queries past the end have an infinite max, hence no weight. Heads and
    blocks of queries are one loop: nested loops would spill registers.
    """
    blocks = tl.cdiv(tl.maximum(end - begin, 0), BLOCK_M)
    for step in range(0, blocks * heads.group):
        head, first = head_k * heads.group + step // blocks, begin + step % blocks * BLOCK_M
        i = first + tl.arange(0, BLOCK_M)
        position = (i + (sk - sq))[None, :]
        x = load_rows(
            start_of(q, n, head, first_q), q.row, first, sq, D, BLOCK_M, BLOCK_D, not MASKED
        )
        base = tl.load(numbers_of(highest, n, head, first_q) + i, mask=i < sq, other=float("inf"))[
            None, :
        ]
        norm = tl.load(numbers_of(log_total, n, head, first_q) + i, mask=i < sq, other=0.0)[None, :]
        slope = slope_of(score, n, head)
        scores, derivative = modified_scores(
            product(y, tl.trans(x)), n, head, i[None, :], j[:, None], sq, sk, slope, score
        )
        weights = weights_of(scores, base, norm, score)
        if MASKED:
            weights = tl.where(is_visible(position, j[:, None], bounds), weights, 0.0)
        g = load_rows(
            start_of(dout, n, head, first_q), dout.row, first, sq, DV, BLOCK_M, BLOCK_DV, not MASKED
        )
        dp = product(z, tl.trans(g))
        used = weights
        if dropout is not None:
            bh = n * heads.count + head
            is_kept = tl.trans(
                dropout_mask(i, first_j, bh, key_0, key_1, offset, dropout.threshold, BLOCK_N)
            )
            used = tl.where(is_kept, weights, 0.0)
            dp = tl.where(is_kept, dp * dropout.scale, 0.0)
        of_values = add_product(used, g, of_values)
        d = tl.load(numbers_of(delta, n, head, first_q) + i, mask=i < sq, other=0.0)
        of_keys = add_product(weights * (dp - d[None, :]) * derivative, x, of_keys)
    return of_keys, of_values


@triton.jit(do_not_specialize=CHANGING)
def gradients_of_keys(
    q, k, v, dout, highest, log_total, delta, dk, dv, lengths, heads, score, bounds, dropout,
    length_q, length_k, longest_k, key_0, key_1, offset,
    D: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys of one head, over the queries of all heads that share it."""
    blocks = tl.cdiv(longest_k, BLOCK_N)
    heads_k = heads.count // heads.group
    head_k, n = tl.program_id(0) // blocks % heads_k, tl.program_id(0) // blocks // heads_k
    first_k, sk = span(lengths.cu_k, lengths.used_k, lengths.pad_k, n, length_k)
    begin_j = (
        tl.program_id(0) % blocks * BLOCK_N
    )  # the first keys first: under a causal mask most queries attend to them
    if begin_j >= sk:
        return
    first_q, sq = span(lengths.cu_q, lengths.used_q, None, n, length_q)
    j = begin_j + tl.arange(0, BLOCK_N)
    y = load_rows(start_of(k, n, head_k, first_k), k.row, begin_j, sk, D, BLOCK_N, BLOCK_D, False)
    z = load_rows(start_of(v, n, head_k, first_k), v.row, begin_j, sk, DV, BLOCK_N, BLOCK_DV, False)
    of_keys = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    of_values = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)

    # The window of a key over queries is that of a query over keys with exchanged sides.
    last_j = tl.minimum(begin_j + BLOCK_N, sk) - 1
    begin, whole_begin, whole_end, end = visible_blocks(
        begin_j, last_j, bounds.right, bounds.left, bounds.chunk, sk - sq, sq, BLOCK_M
    )
    for part in tl.static_range(3):
        if part > 0 or bounds.right is not None or bounds.chunk is not None:
            of_keys, of_values = add_queries(
                of_keys, of_values, y, z=z, q=q, dout=dout, highest=highest, log_total=log_total,
                delta=delta, n=n, head_k=head_k, first_q=first_q,
                begin=begin if part == 0 else (whole_begin if part == 1 else whole_end),
                end=whole_begin if part == 0 else (whole_end if part == 1 else end),
                j=j, first_j=begin_j, sq=sq, sk=sk, heads=heads, score=score, bounds=bounds,
                dropout=dropout, key_0=key_0, key_1=key_1, offset=offset, MASKED=part != 1,
                D=D, DV=DV, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D, BLOCK_DV=BLOCK_DV,
            )  # fmt: skip
    if dropout is not None:
        of_values *= dropout.scale
    of_keys *= score.scale_of_gradients
    store_rows(start_of(dk, n, head_k, first_k), dk.row, begin_j, sk, of_keys, D, BLOCK_N, BLOCK_D)
    store_rows(
        start_of(dv, n, head_k, first_k), dv.row, begin_j, sk, of_values, DV, BLOCK_N, BLOCK_DV
    )


@triton.jit
def add_keys(
    dq, tilt, x, g, base, norm, delta, k_at, k_row, v_at, v_row, dbias, n, head, begin, end, i, sq,
    sk,
    heads, score, bounds, dropout, key_0, key_1, offset,
    MASKED: tl.constexpr, TILTED: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Accumulates dq / scale of the queries i, and the gradient of the ALiBi slope, over keys begin
    to end.

    The gradients of the scores are those of the bias.
    """
    position = (i + (sk - sq))[:, None]
    slope = slope_of(score, n, head)
    for first in range(begin, end, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)[None, :]
        y = load_rows(k_at, k_row, first, sk, D, BLOCK_N, BLOCK_D, not MASKED)
        scores, derivative = modified_scores(
            product(x, tl.trans(y)), n, head, i[:, None], j, sq, sk, slope, score
        )
        weights = weights_of(scores, base, norm, score)
        if MASKED:
            weights = tl.where((j < sk) & is_visible(position, j, bounds), weights, 0.0)
        z = load_rows(v_at, v_row, first, sk, DV, BLOCK_N, BLOCK_DV, not MASKED)
        dp = product(g, tl.trans(z))
        if dropout is not None:
            bh = n * heads.count + head
            is_kept = dropout_mask(i, first, bh, key_0, key_1, offset, dropout.threshold, BLOCK_N)
            dp = tl.where(is_kept, dp * dropout.scale, 0.0)
        ds = weights * (dp - delta[:, None])
        if TILTED:
            tilt -= tl.sum(ds * tl.abs(position - j).to(tl.float32), 1)
        if dbias is not None:
            tl.store(
                addresses_in(dbias, n, head, i[:, None], j), ds, mask=(i < sq)[:, None] & (j < sk)
            )
        dq = add_product(ds * derivative, y, dq)
    return dq, tilt


@triton.jit(do_not_specialize=CHANGING)
def gradients_of_queries(
    q, k, v, dout, highest, log_total, delta, dq, dslopes, dbias, lengths, heads, score, bounds,
    dropout,
    length_q, length_k, longest_q, key_0, key_1, offset,
    D: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries of one head and, if requested, their share of the gradients of the
    ALiBi slope and the bias.
    """
    blocks = tl.cdiv(longest_q, BLOCK_M)
    block = blocks - 1 - tl.program_id(0) % blocks
    head, n = tl.program_id(0) // blocks % heads.count, tl.program_id(0) // blocks // heads.count
    first_q, sq = span(lengths.cu_q, lengths.used_q, None, n, length_q)
    begin_i = block * BLOCK_M
    if begin_i >= sq:
        return
    first_k, sk = span(lengths.cu_k, lengths.used_k, lengths.pad_k, n, length_k)
    shift = sk - sq
    i = begin_i + tl.arange(0, BLOCK_M)
    x = load_rows(start_of(q, n, head, first_q), q.row, begin_i, sq, D, BLOCK_M, BLOCK_D, False)
    g = load_rows(
        start_of(dout, n, head, first_q), dout.row, begin_i, sq, DV, BLOCK_M, BLOCK_DV, False
    )
    base = tl.load(numbers_of(highest, n, head, first_q) + i, mask=i < sq, other=float("inf"))[
        :, None
    ]
    norm = tl.load(numbers_of(log_total, n, head, first_q) + i, mask=i < sq, other=0.0)[:, None]
    d = tl.load(numbers_of(delta, n, head, first_q) + i, mask=i < sq, other=0.0)
    k_at = start_of(k, n, head // heads.group, first_k)
    v_at = start_of(v, n, head // heads.group, first_k)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    tilt = tl.zeros([BLOCK_M], tl.float32)

    last_position = tl.minimum(begin_i + BLOCK_M, sq) - 1 + shift
    begin, whole_begin, whole_end, end = visible_blocks(
        begin_i + shift, last_position, bounds.left, bounds.right, bounds.chunk, 0, sk, BLOCK_N
    )
    for part in tl.static_range(3):
        if part > 0 or bounds.left is not None or bounds.chunk is not None:
            acc, tilt = add_keys(
                acc, tilt, x, g=g, base=base, norm=norm, delta=d, k_at=k_at, k_row=k.row, v_at=v_at,
                v_row=v.row, dbias=dbias, n=n, head=head,
                begin=begin if part == 0 else (whole_begin if part == 1 else whole_end),
                end=whole_begin if part == 0 else (whole_end if part == 1 else end),
                i=i, sq=sq, sk=sk, heads=heads, score=score, bounds=bounds, dropout=dropout,
                key_0=key_0,
                key_1=key_1, offset=offset, MASKED=part != 1, TILTED=dslopes is not None, D=D,
                DV=DV,
                BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D, BLOCK_DV=BLOCK_DV,
            )  # fmt: skip
    acc *= score.scale_of_gradients
    store_rows(start_of(dq, n, head, first_q), dq.row, begin_i, sq, acc, D, BLOCK_M, BLOCK_D)
    if dslopes is not None:
        tl.store(numbers_of(dslopes, n, head, first_q) + i, tilt, mask=i < sq)
