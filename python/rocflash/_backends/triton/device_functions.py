"""Device functions that the kernels share: rows of a sequence, mask bounds, score modifiers,
dropout.

Scores are in base 2 (times log2(e)) where that cannot overflow, so that exp2 takes them without
another product. Otherwise they are natural, and their differences from the running max are
multiplied by log2(e) (launch._score).
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Triton's interpreter truncates bf16 instead of rounding, and multiplies its bits as integers.
INTERPRETED = tl.constexpr(
    os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """f32 numbers rounded to the inputs' dtype."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def product(a, b):
    if INTERPRETED and a.dtype == tl.bfloat16:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b)


@triton.jit
def add_product(a, b, acc):
    """acc + a·b, a rounded to the dtype of b."""
    if INTERPRETED and b.dtype == tl.bfloat16:
        return tl.dot(rounded(a, b.dtype).to(tl.float32), b.to(tl.float32), acc)
    return tl.dot(rounded(a, b.dtype), b, acc)


@triton.jit
def span(cu, used, pad, n, length):
    """(first row, number of used rows) of sequence n, clamped to the tensor's `length`."""
    first = 0
    count = length
    if cu is not None:
        first = tl.minimum(tl.maximum(tl.load(cu + n), 0), length)
        count = tl.minimum(tl.maximum(tl.load(cu + n + 1), first), length) - first
    if used is not None:
        count = tl.minimum(tl.maximum(tl.load(used + n), 0), count)
    if pad is not None:
        skipped = tl.minimum(tl.maximum(tl.load(pad + n), 0), count)
        first += skipped
        count -= skipped
    return first, count


@triton.jit
def start_of(rows, n, head, row):
    """Address of one row's first column."""
    at = rows.data + tl.cast(n, tl.int64) * rows.batch + tl.cast(head, tl.int64) * rows.head
    return at + tl.cast(row, tl.int64) * rows.row


@triton.jit
def numbers_of(numbers, n, head, first):
    """Address of the number of a sequence's first row."""
    return (
        numbers.data
        + tl.cast(n, tl.int64) * numbers.batch
        + tl.cast(head, tl.int64) * numbers.head
        + first
    )


@triton.jit
def load_rows(
    at,
    stride,
    first,
    count,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """(ROWS, COLUMNS) from row `first` at `at`; 0 past SIZE columns and, unless WHOLE, past `count`
    rows.
    """
    at += tl.cast(first, tl.int64) * stride
    count -= first
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    where = at + row * stride + column
    if WHOLE and SIZE == COLUMNS:
        return tl.load(where)
    if WHOLE:
        return tl.load(where, mask=column < SIZE, other=0.0)
    if SIZE == COLUMNS:
        return tl.load(where, mask=row < count, other=0.0)
    return tl.load(where, mask=(row < count) & (column < SIZE), other=0.0)


@triton.jit
def load_paged(
    rows,
    pages,
    n,
    head,
    first,
    begin,
    end,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """load_rows for paged rows `first` and later ones: from row `begin`, 0 from `end` on."""
    row, column = begin + tl.arange(0, ROWS), tl.arange(0, COLUMNS)[None, :]
    inside = row < end
    at = first + row
    page = tl.load(pages.table + n * pages.width + at // pages.size, mask=inside, other=0)
    page = tl.minimum(tl.maximum(page, 0), pages.count - 1)  # clamped to existing pages
    where = tl.cast(page, tl.int64) * rows.batch + tl.cast(at % pages.size, tl.int64) * rows.row
    where = rows.data + tl.cast(head, tl.int64) * rows.head + where[:, None] + column
    return tl.load(where, mask=inside[:, None] & (column < SIZE), other=0.0)


@triton.jit
def load_keys(
    rows, pages, n, head, first, begin, end,
    SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Keys or values begin to begin + ROWS of a sequence whose first one is in row `first`."""
    if pages is not None:
        return load_paged(rows, pages, n, head, first, begin, end, SIZE, ROWS, COLUMNS)
    return load_rows(
        start_of(rows, n, head, first), rows.row, begin, end, SIZE, ROWS, COLUMNS, WHOLE
    )


@triton.jit
def entry_of(lengths, n):
    """The batch entry of a sequence's keys and values."""
    return n if lengths.entry_k is None else tl.load(lengths.entry_k + n)


@triton.jit
def store_rows(
    at, stride, first, count, values, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    at += tl.cast(first, tl.int64) * stride
    count -= first
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    where = at + row * stride + column
    tl.store(where, rounded(values, at.dtype.element_ty), mask=(row < count) & (column < SIZE))


@triton.jit
def visible_range(position, before, after, chunk):
    """The visible range (first, last) of a position: `before` and `after` indices around it, in the
    same chunk.
    """
    first = position - before if before is not None else position - 1073741824
    last = position + after if after is not None else position + 1073741824
    if chunk is not None:
        begin = (
            position - (position % chunk + chunk) % chunk
        )  # of the chunk; positions may be negative
        first = tl.maximum(first, begin)
        last = tl.minimum(last, begin + chunk - 1)
    return first, last


@triton.jit
def visible_blocks(low, high, before, after, chunk, shift, count, STEP: tl.constexpr):
    """(begin, whole_begin, whole_end, end) of the range that positions low to high attend to, of
    `count` indices.

    Index x is at position x + shift. Blocks of STEP from begin to end hold all that
    is visible; between the two in the middle every position attends to every index. All but `end`
    are multiples of STEP.
    """
    begin, whole_begin = 0, 0
    end, whole_end = count, count // STEP * STEP
    if before is not None or after is not None or chunk is not None:
        first, last_of_low = visible_range(low, before, after, chunk)
        first_of_high, last = visible_range(high, before, after, chunk)
        begin = tl.maximum(first - shift, 0) // STEP * STEP
        end = tl.minimum(last - shift + 1, count)
        whole_begin = tl.maximum(
            (tl.maximum(first_of_high - shift, 0) + STEP - 1) // STEP * STEP, begin
        )
        whole_end = tl.maximum(tl.minimum(last_of_low - shift + 1, count), 0) // STEP * STEP
        some = whole_end > whole_begin
        whole_begin = tl.where(some, whole_begin, begin)
        whole_end = tl.where(some, whole_end, begin)
    return begin, whole_begin, whole_end, end


@triton.jit
def is_visible(position, j, bounds):
    first, last = visible_range(position, bounds.left, bounds.right, bounds.chunk)
    return (j >= first) & (j <= last)


@triton.jit
def capped(scores, softcap, inverse):
    """(softcap · tanh(x), tanh(x)) for x = scores / softcap; `inverse` is 16 / softcap.

    Below 1/4, tanh(x) / x is a polynomial that multiplies the score, so that a large softcap
    converges to none: the formula by exp2 has an absolute error of 1e-7, which softcap would
    multiply. The factor of 16 keeps the inverse of the largest softcap a normal number, which GPUs
    do not flush to zero.
    """
    x = (scores * 0.0625) * inverse
    square = x * x
    ratio = 1.0 + square * (
        -1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))
    )
    small = tl.abs(x) < 0.25
    bent = tl.where(small, x * ratio, 1.0 - 2.0 / (tl.exp2(x * (2 * LOG2_E)) + 1.0))
    return tl.where(small, scores * ratio, bent * softcap), bent


@triton.jit
def exp_of(x, score):
    """exp of a score difference, in the base of the scores."""
    if score.to_base_2 is not None:
        x = x * score.to_base_2
    return tl.exp2(x)


@triton.jit
def weights_of(scores, highest, log_total, score):
    """Softmax weights from the statistics of a row: exp(scores - highest) / 2^log_total."""
    x = scores - highest
    if score.to_base_2 is not None:
        x = x * score.to_base_2
    return tl.exp2(x - log_total)


@triton.jit
def in_base(x, score):
    """A natural score (a sink, lse) in the base of the scores."""
    if score.to_base_2 is None:
        x = x * LOG2_E
    return x


@triton.jit
def slope_of(score, n, head):
    """A head's ALiBi slope."""
    slope = 0.0
    if score.slopes is not None:
        slope = tl.load(score.slopes + n * score.slope_batch + head)
    return slope


@triton.jit
def addresses_in(tensor, n, head, i, j):
    """Addresses of the elements of queries i and keys j."""
    at = tensor.data + tl.cast(n, tl.int64) * tensor.batch + tl.cast(head, tl.int64) * tensor.head
    return at + tl.cast(i, tl.int64) * tensor.row + tl.cast(j, tl.int64) * tensor.column


@triton.jit
def modified_scores(dots, n, head, i, j, sq, sk, slope, score):
    """(scores, their derivative by scale·q·k) of products q·k of queries i with keys j, one of them
    along each axis.
    """
    scores = dots * score.scale
    derivative = 1.0
    if score.softcap is not None:
        scores, bent = capped(scores, score.softcap, score.inverse_softcap)
        derivative = 1.0 - bent * bent
    if score.slopes is not None:
        scores -= slope * tl.abs(i + (sk - sq) - j).to(tl.float32)
    if score.bias is not None:
        added = tl.load(
            addresses_in(score.bias, n, head, i, j), mask=(i < sq) & (j < sk), other=0.0
        )
        scores += added.to(tl.float32)
    if score.mask is not None:
        visible = tl.load(
            addresses_in(score.mask, n, head, i, j), mask=(i < sq) & (j < sk), other=0
        )
        scores = tl.where(visible != 0, scores, float("-inf"))
    return scores, derivative


@triton.jit
def dropout_mask(i, first_key, bh, key_0, key_1, offset, threshold, KEYS: tl.constexpr):
    """(queries, KEYS): the weights that dropout keeps. First_key is a multiple of 8.

    Philox 4x32-10 as in the library (docs/reference/semantics.md, Dropout): one call per eight
    keys, 16 bits each.
    """
    k0, k1 = key_0.to(tl.uint32, bitcast=True), key_1.to(tl.uint32, bitcast=True)
    groups = (first_key // 8 + tl.arange(0, KEYS // 8)).to(tl.uint32)[None, :]
    queries = i.to(tl.uint32)[:, None]
    nothing = (groups ^ groups) | (queries ^ queries)
    c0, c1 = nothing | groups, nothing | queries
    c2, c3 = nothing | bh.to(tl.uint32), nothing | offset.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(10):
        high_0, low_0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high_2, low_2 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high_2 ^ c1 ^ k0, low_2, high_0 ^ c3 ^ k1, low_0
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    # Words 0 to 3 interleaved, each as its lower and upper half: the order of the keys.
    words = tl.join(tl.join(c0, c2), tl.join(c1, c3))
    bits = tl.join(words & 0xFFFF, words >> 16)
    return tl.reshape(bits, (i.shape[0], KEYS)).to(tl.int32) < threshold
