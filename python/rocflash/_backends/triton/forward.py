"""Forward: each program computes BLOCK_M queries of one head, over blocks of BLOCK_N keys, with an online softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from .pieces import (
    LN_2,
    LOG2_E,
    add_product,
    blocks_seen,
    entry_of,
    is_seen,
    kept,
    load_keys,
    load_rows,
    numbers_of,
    product,
    shaped,
    slope_of,
    span,
    start_of,
    store_rows,
)

# Arguments for whose values nothing is compiled anew.
CHANGING = ("length_q", "length_k", "longest_q", "longest_k", "key_0", "key_1", "offset")


@triton.jit
def attend(
    acc, highest, total, x, k, v, pages, n, n_k, head, first_k, begin, end, i, sq, sk,
    heads, score, sight, dropout, key_0, key_1, offset,
    MASKED: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Takes keys begin to end into the sums of the queries i: weighted values, highest score, weights."""
    place = (i + (sk - sq))[:, None]
    slope = slope_of(score, n, head)
    for first in range(begin, end, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)[None, :]
        y = load_keys(k, pages, n_k, head // heads.group, first_k, first, sk, D, BLOCK_N, BLOCK_D, not MASKED)
        scores, _ = shaped(product(x, tl.trans(y)), n, head, i[:, None], j, sq, sk, slope, score)
        if MASKED:
            scores = tl.where((j < sk) & is_seen(place, j, sight), scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing is seen so far
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, 1)
        if dropout is not None:
            plane = n * heads.count + head
            stays = kept(i, first, plane, key_0, key_1, offset, dropout.threshold, BLOCK_N)
            weights = tl.where(stays, weights, 0.0)
        z = load_keys(v, pages, n_k, head // heads.group, first_k, first, sk, DV, BLOCK_N, BLOCK_DV, not MASKED)
        acc = add_product(weights, z, acc * shrink[:, None])
        highest = higher
    return acc, highest, total


@triton.jit(do_not_specialize=CHANGING)
def attention_forward(
    q, k, v, out, lse, sinks, pages, lengths, heads, score, sight, dropout,
    length_q, length_k, longest_q, key_0, key_1, offset,
    D: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """out and lse of BLOCK_M queries. Rows that hold no query in use are not written."""
    blocks = tl.cdiv(longest_q, BLOCK_M)
    block = blocks - 1 - tl.program_id(0) % blocks  # the last queries first: under a causal mask they see most
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
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        highest = tl.full([BLOCK_M], 0.0, tl.float32) + sink
        total = tl.where(highest == float("-inf"), 0.0, tl.where(highest < float("inf"), 1.0, float("nan")))

    last_place = tl.minimum(begin_i + BLOCK_M, sq) - 1 + shift
    begin, whole_begin, whole_end, end = blocks_seen(
        begin_i + shift, last_place, sight.left, sight.right, sight.chunk, 0, sk, BLOCK_N
    )
    for part in tl.static_range(3):  # before, within and after the blocks that every query sees whole
        if part > 0 or sight.left is not None or sight.chunk is not None:
            acc, highest, total = attend(
                acc, highest, total, x, k, v, pages, n, entry_of(lengths, n), head, first_k,
                begin if part == 0 else (whole_begin if part == 1 else whole_end),
                whole_begin if part == 0 else (whole_end if part == 1 else end),
                i, sq, sk, heads, score, sight, dropout, key_0, key_1, offset, part != 1,
                D, DV, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip

    blind = total == 0.0
    total = tl.where(blind, 1.0, total)
    if dropout is not None:
        acc *= dropout.scale
    acc /= total[:, None]
    store_rows(start_of(out, n, head, first_q), out.row, begin_i, sq, acc, DV, BLOCK_M, BLOCK_DV)
    found = tl.where(blind, float("inf"), (highest + tl.log2(total)) * LN_2)
    tl.store(numbers_of(lse, n, head, first_q) + i, found, mask=i < sq)


@triton.jit(do_not_specialize=CHANGING)
def attention_weights(
    q, k, weights, lse, pages, lengths, heads, score, sight, dropout,
    length_q, length_k, longest_q, key_0, key_1, offset,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The softmax's weights of BLOCK_M queries from their lse, negative where dropped, into (sequence, head, i, j)."""
    blocks = tl.cdiv(longest_q, BLOCK_M)
    head, n = tl.program_id(0) // blocks % heads.count, tl.program_id(0) // blocks // heads.count
    first_q, sq = span(lengths.cu_q, lengths.used_q, None, n, length_q)
    begin_i = tl.program_id(0) % blocks * BLOCK_M
    if begin_i >= sq:
        return
    first_k, sk = span(lengths.cu_k, lengths.used_k, lengths.pad_k, n, length_k)
    i = begin_i + tl.arange(0, BLOCK_M)
    place = (i + sk - sq)[:, None]
    x = load_rows(start_of(q, n, head, first_q), q.row, begin_i, sq, D, BLOCK_M, BLOCK_D, False)
    n_k = entry_of(lengths, n)
    slope = slope_of(score, n, head)
    base = tl.load(numbers_of(lse, n, head, first_q) + i, mask=i < sq, other=float("inf")) * LOG2_E
    for first in range(0, sk, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)[None, :]
        y = load_keys(k, pages, n_k, head // heads.group, first_k, first, sk, D, BLOCK_N, BLOCK_D, False)
        scores, _ = shaped(product(x, tl.trans(y)), n, head, i[:, None], j, sq, sk, slope, score)
        found = tl.where(is_seen(place, j, sight), tl.exp2(scores - base[:, None]), 0.0)
        if dropout is not None:
            stays = kept(i, first, n * heads.count + head, key_0, key_1, offset, dropout.threshold, BLOCK_N)
            found = tl.where(stays, found, -found)
        at = start_of(weights, n, head, begin_i) + (i - begin_i)[:, None] * weights.row + j
        tl.store(at, found, mask=(i < sq)[:, None] & (j < sk))
