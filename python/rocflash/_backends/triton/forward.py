"""Forward: each program computes BLOCK_M queries of one head, over blocks of BLOCK_N keys, with an
online softmax.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .device_functions import (
    LN_2,
    add_product,
    dropout_mask,
    entry_of,
    exp_of,
    in_base,
    is_visible,
    load_keys,
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

# Arguments on whose values Triton must not specialize.
CHANGING = ("length_q", "length_k", "longest_q", "longest_k", "key_0", "key_1", "offset")


@triton.jit
def attend(
    acc, highest, total, x, k, v, pages, n, n_k, head, first_k, begin, end, i, sq, sk,
    heads, score, bounds, dropout, key_0, key_1, offset,
    MASKED: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Online softmax of the queries i over keys begin to end: accumulates values, running max and
    sum.
    """
    position = (i + (sk - sq))[:, None]
    slope = slope_of(score, n, head)
    for first in range(begin, end, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)[None, :]
        y = load_keys(
            k,
            pages,
            n_k,
            head=head // heads.group,
            first=first_k,
            begin=first,
            end=sk,
            SIZE=D,
            ROWS=BLOCK_N,
            COLUMNS=BLOCK_D,
            WHOLE=not MASKED,
        )
        scores, _ = modified_scores(
            product(x, tl.trans(y)), n, head, i[:, None], j, sq, sk, slope, score
        )
        if MASKED:
            scores = tl.where((j < sk) & is_visible(position, j, bounds), scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # all scores so far are masked
        weights = exp_of(scores - base[:, None], score)
        shrink = exp_of(highest - base, score)
        total = total * shrink + tl.sum(weights, 1)
        if dropout is not None:
            bh = n * heads.count + head
            is_kept = dropout_mask(i, first, bh, key_0, key_1, offset, dropout.threshold, BLOCK_N)
            weights = tl.where(is_kept, weights, 0.0)
        z = load_keys(
            v,
            pages,
            n_k,
            head=head // heads.group,
            first=first_k,
            begin=first,
            end=sk,
            SIZE=DV,
            ROWS=BLOCK_N,
            COLUMNS=BLOCK_DV,
            WHOLE=not MASKED,
        )
        acc = add_product(weights, z, acc * shrink[:, None])
        highest = higher
    return acc, highest, total


@triton.jit(do_not_specialize=CHANGING)
def attention_forward(
    q, k, v, out, lse, sinks, pages, lengths, heads, score, bounds, dropout,
    length_q, length_k, longest_q, key_0, key_1, offset,
    D: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """out and lse of BLOCK_M queries. Unused rows are not written."""
    blocks = tl.cdiv(longest_q, BLOCK_M)
    block = (
        blocks - 1 - tl.program_id(0) % blocks
    )  # the last queries first: under a causal mask they attend to most keys
    head, n = tl.program_id(0) // blocks % heads.count, tl.program_id(0) // blocks // heads.count
    first_q, sq = span(lengths.cu_q, lengths.used_q, None, n, length_q)
    begin_i = block * BLOCK_M
    if begin_i >= sq:
        return
    first_k, sk = span(lengths.cu_k, lengths.used_k, lengths.pad_k, n, length_k)
    shift = sk - sq
    i = begin_i + tl.arange(0, BLOCK_M)
    x = load_rows(start_of(q, n, head, first_q), q.row, begin_i, sq, D, BLOCK_M, BLOCK_D, False)

    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks is not None:  # one more key, which has no value
        sink = in_base(tl.load(sinks + head).to(tl.float32), score)
        highest = tl.full([BLOCK_M], 0.0, tl.float32) + sink
        total = tl.where(
            highest == float("-inf"), 0.0, tl.where(highest < float("inf"), 1.0, float("nan"))
        )

    last_position = tl.minimum(begin_i + BLOCK_M, sq) - 1 + shift
    begin, whole_begin, whole_end, end = visible_blocks(
        begin_i + shift, last_position, bounds.left, bounds.right, bounds.chunk, 0, sk, BLOCK_N
    )
    for part in tl.static_range(3):  # before, within and after the blocks without a mask
        if part > 0 or bounds.left is not None or bounds.chunk is not None:
            acc, highest, total = attend(
                acc, highest, total, x=x, k=k, v=v, pages=pages, n=n, n_k=entry_of(lengths, n),
                head=head,
                first_k=first_k,
                begin=begin if part == 0 else (whole_begin if part == 1 else whole_end),
                end=whole_begin if part == 0 else (whole_end if part == 1 else end),
                i=i, sq=sq, sk=sk, heads=heads, score=score, bounds=bounds, dropout=dropout,
                key_0=key_0,
                key_1=key_1, offset=offset, MASKED=part != 1,
                D=D, DV=DV, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D, BLOCK_DV=BLOCK_DV,
            )  # fmt: skip

    fully_masked = total == 0.0
    total = tl.where(fully_masked, 1.0, total)
    if dropout is not None:
        acc *= dropout.scale
    acc /= total[:, None]
    store_rows(start_of(out, n, head, first_q), out.row, begin_i, sq, acc, DV, BLOCK_M, BLOCK_DV)
    found = tl.log2(total) * LN_2
    found += highest * LN_2 if score.to_base_2 is None else highest
    found = tl.where(fully_masked, float("inf"), found)
    tl.store(numbers_of(lse, n, head, first_q) + i, found, mask=i < sq)


@triton.jit(do_not_specialize=CHANGING)
def softmax_statistics(
    q, k, lse, highest, log_total, sinks, pages, lengths, heads, score, bounds,
    length_q, length_k, longest_q,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Statistics for the recomputation of weights: (lse, 0), in the base of the scores, or (max,
    log2 of the sum) of rows with a large lse.

    The rounding of lse is an error in the logarithm of every weight: in an lse of -3e38 the sum is
    lost. Blocks of queries without large lse return immediately.
    """
    blocks = tl.cdiv(longest_q, BLOCK_M)
    head, n = tl.program_id(0) // blocks % heads.count, tl.program_id(0) // blocks // heads.count
    first_q, sq = span(lengths.cu_q, lengths.used_q, None, n, length_q)
    begin_i = tl.program_id(0) % blocks * BLOCK_M
    if begin_i >= sq:
        return
    i = begin_i + tl.arange(0, BLOCK_M)
    given = tl.load(numbers_of(lse, n, head, first_q) + i, mask=i < sq, other=float("inf"))
    large = (tl.abs(given) > 4096.0) & (tl.abs(given) < float("inf"))
    at, at_total = (
        numbers_of(highest, n, head, first_q) + i,
        numbers_of(log_total, n, head, first_q) + i,
    )
    tl.store(at, in_base(given, score), mask=i < sq)
    tl.store(at_total, tl.zeros([BLOCK_M], tl.float32), mask=i < sq)
    if tl.max(large.to(tl.int32), 0) == 0:
        return
    first_k, sk = span(lengths.cu_k, lengths.used_k, lengths.pad_k, n, length_k)
    position = (i + sk - sq)[:, None]
    x = load_rows(start_of(q, n, head, first_q), q.row, begin_i, sq, D, BLOCK_M, BLOCK_D, False)
    n_k = entry_of(lengths, n)
    slope = slope_of(score, n, head)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks is not None:
        top = tl.zeros([BLOCK_M], tl.float32) + in_base(tl.load(sinks + head).to(tl.float32), score)
        total = tl.where(top == float("-inf"), 0.0, 1.0)
    for first in range(0, sk, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)[None, :]
        y = load_keys(
            k,
            pages,
            n_k,
            head=head // heads.group,
            first=first_k,
            begin=first,
            end=sk,
            SIZE=D,
            ROWS=BLOCK_N,
            COLUMNS=BLOCK_D,
            WHOLE=False,
        )
        scores, _ = modified_scores(
            product(x, tl.trans(y)), n, head, i[:, None], j, sq, sk, slope, score
        )
        scores = tl.where((j < sk) & is_visible(position, j, bounds), scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * exp_of(top - base, score) + tl.sum(exp_of(scores - base[:, None], score), 1)
        top = higher
    # Less than the lse: the call has only some of the row's keys, and the lse is all there is
    # (src/core/lse.hpp).
    found = tl.log2(total) * LN_2
    found += top * LN_2 if score.to_base_2 is None else top
    size = tl.abs(given)
    covered = found >= given - size * tl.where(
        size < 1048576.0, 9.5367431640625e-07, 0.000244140625
    )
    tl.store(at, top, mask=(i < sq) & large & covered)
    tl.store(at_total, tl.log2(total), mask=(i < sq) & large & covered)


@triton.jit(do_not_specialize=CHANGING)
def attention_weights(
    q, k, weights, highest, log_total, pages, lengths, heads, score, bounds, dropout,
    length_q, length_k, longest_q, key_0, key_1, offset,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The softmax's weights of BLOCK_M queries from their softmax_statistics, negative where
    dropped, into (sequence, head, i, j).
    """
    blocks = tl.cdiv(longest_q, BLOCK_M)
    head, n = tl.program_id(0) // blocks % heads.count, tl.program_id(0) // blocks // heads.count
    first_q, sq = span(lengths.cu_q, lengths.used_q, None, n, length_q)
    begin_i = tl.program_id(0) % blocks * BLOCK_M
    if begin_i >= sq:
        return
    first_k, sk = span(lengths.cu_k, lengths.used_k, lengths.pad_k, n, length_k)
    i = begin_i + tl.arange(0, BLOCK_M)
    position = (i + sk - sq)[:, None]
    x = load_rows(start_of(q, n, head, first_q), q.row, begin_i, sq, D, BLOCK_M, BLOCK_D, False)
    n_k = entry_of(lengths, n)
    slope = slope_of(score, n, head)
    base = tl.load(numbers_of(highest, n, head, first_q) + i, mask=i < sq, other=float("inf"))[
        :, None
    ]
    norm = tl.load(numbers_of(log_total, n, head, first_q) + i, mask=i < sq, other=0.0)[:, None]
    for first in range(0, sk, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)[None, :]
        y = load_keys(
            k,
            pages,
            n_k,
            head=head // heads.group,
            first=first_k,
            begin=first,
            end=sk,
            SIZE=D,
            ROWS=BLOCK_N,
            COLUMNS=BLOCK_D,
            WHOLE=False,
        )
        scores, _ = modified_scores(
            product(x, tl.trans(y)), n, head, i[:, None], j, sq, sk, slope, score
        )
        found = tl.where(
            is_visible(position, j, bounds), weights_of(scores, base, norm, score), 0.0
        )
        if dropout is not None:
            is_kept = dropout_mask(
                i, first, n * heads.count + head, key_0, key_1, offset, dropout.threshold, BLOCK_N
            )
            found = tl.where(is_kept, found, -found)
        at = start_of(weights, n, head, begin_i) + (i - begin_i)[:, None] * weights.row + j
        tl.store(at, found, mask=(i < sq)[:, None] & (j < sk))
