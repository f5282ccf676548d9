"""What the kernels share: the rows of a sequence, what a query sees, how a score is shaped, which weights are kept.

Scores are in base 2 (times log2(e)), so that exp2 takes them as they are.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Triton's interpreter cuts bf16 off instead of rounding it, and multiplies its bits as integers.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y"))


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """f32 numbers as the inputs' dtype has them."""
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
    """(first row, number of rows) in use of sequence n, held to the tensor's `length` whatever the lengths say."""
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
    """Address of the number that belongs to a sequence's first row."""
    return numbers.data + tl.cast(n, tl.int64) * numbers.batch + tl.cast(head, tl.int64) * numbers.head + first


@triton.jit
def load_rows(at, stride, first, count, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr):
    """(ROWS, COLUMNS) from row `first` of those at `at`; 0 past SIZE columns and, unless all are there, past `count` rows."""
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
    rows, pages, n, head, first, begin, end, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """As load_rows, where row `first` and those after it lie in pages; from row `begin` of them, 0 from `end` on."""
    row, column = begin + tl.arange(0, ROWS), tl.arange(0, COLUMNS)[None, :]
    there = row < end
    at = first + row
    page = tl.load(pages.table + n * pages.width + at // pages.size, mask=there, other=0)
    page = tl.minimum(tl.maximum(page, 0), pages.count - 1)  # whatever the table says
    where = tl.cast(page, tl.int64) * rows.batch + tl.cast(at % pages.size, tl.int64) * rows.row
    where = rows.data + tl.cast(head, tl.int64) * rows.head + where[:, None] + column
    return tl.load(where, mask=there[:, None] & (column < SIZE), other=0.0)


@triton.jit
def load_keys(
    rows, pages, n, head, first, begin, end,
    SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Keys or values begin to begin + ROWS of a sequence whose first one is in row `first`."""
    if pages is not None:
        return load_paged(rows, pages, n, head, first, begin, end, SIZE, ROWS, COLUMNS)
    return load_rows(start_of(rows, n, head, first), rows.row, begin, end, SIZE, ROWS, COLUMNS, WHOLE)


@triton.jit
def entry_of(lengths, n):
    """The batch entry of a sequence's keys and values."""
    return n if lengths.entry_k is None else tl.load(lengths.entry_k + n)


@triton.jit
def store_rows(at, stride, first, count, values, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at += tl.cast(first, tl.int64) * stride
    count -= first
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    where = at + row * stride + column
    tl.store(where, rounded(values, at.dtype.element_ty), mask=(row < count) & (column < SIZE))


@triton.jit
def seen_from(place, before, after, chunk):
    """(first, last) index that is seen from a place: so many before and after it, in the same chunk."""
    first = place - before if before is not None else place - 1073741824
    last = place + after if after is not None else place + 1073741824
    if chunk is not None:
        begin = place - (place % chunk + chunk) % chunk  # of the chunk; places may be negative
        first = tl.maximum(first, begin)
        last = tl.minimum(last, begin + chunk - 1)
    return first, last


@triton.jit
def blocks_seen(low, high, before, after, chunk, shift, count, STEP: tl.constexpr):
    """(begin, whole_begin, whole_end, end) of what is seen from places low to high, of `count` indices.

    Index x stands at place x + shift. Blocks of STEP from begin to end hold all that
    is seen; between the two in the middle every place sees every index. All but `end` are multiples of STEP.
    """
    begin, whole_begin = 0, 0
    end, whole_end = count, count // STEP * STEP
    if before is not None or after is not None or chunk is not None:
        first, last_of_low = seen_from(low, before, after, chunk)
        first_of_high, last = seen_from(high, before, after, chunk)
        begin = tl.maximum(first - shift, 0) // STEP * STEP
        end = tl.minimum(last - shift + 1, count)
        whole_begin = tl.maximum((tl.maximum(first_of_high - shift, 0) + STEP - 1) // STEP * STEP, begin)
        whole_end = tl.maximum(tl.minimum(last_of_low - shift + 1, count), 0) // STEP * STEP
        some = whole_end > whole_begin
        whole_begin = tl.where(some, whole_begin, begin)
        whole_end = tl.where(some, whole_end, begin)
    return begin, whole_begin, whole_end, end


@triton.jit
def is_seen(place, j, sight):
    first, last = seen_from(place, sight.left, sight.right, sight.chunk)
    return (j >= first) & (j <= last)


@triton.jit
def bend(x):
    """tanh, from exp2; its error of some 1e-7 is far below what the inputs' dtypes resolve."""
    return 1.0 - 2.0 / (tl.exp2(x * (2 * LOG2_E)) + 1.0)


@triton.jit
def slope_of(score, n, head):
    """A head's ALiBi slope, in base 2."""
    slope = 0.0
    if score.slopes is not None:
        slope = tl.load(score.slopes + n * score.slope_batch + head) * LOG2_E
    return slope


@triton.jit
def addresses_in(tensor, n, head, i, j):
    """Addresses of what belongs to queries i and keys j."""
    at = tensor.data + tl.cast(n, tl.int64) * tensor.batch + tl.cast(head, tl.int64) * tensor.head
    return at + tl.cast(i, tl.int64) * tensor.row + tl.cast(j, tl.int64) * tensor.column


@triton.jit
def shaped(dots, n, head, i, j, sq, sk, slope, score):
    """(scores, their derivative by scale·q·k) of products q·k of queries i with keys j, one of them along each axis."""
    scores = dots * score.scale
    steepness = 1.0
    if score.softcap is not None:
        bent = bend(scores / score.softcap)
        scores = bent * score.softcap
        steepness = 1.0 - bent * bent
    if score.slopes is not None:
        scores -= slope * tl.abs(i + (sk - sq) - j).to(tl.float32)
    if score.bias is not None:
        added = tl.load(addresses_in(score.bias, n, head, i, j), mask=(i < sq) & (j < sk), other=0.0)
        scores += added.to(tl.float32) * LOG2_E
    if score.mask is not None:
        visible = tl.load(addresses_in(score.mask, n, head, i, j), mask=(i < sq) & (j < sk), other=0)
        scores = tl.where(visible != 0, scores, float("-inf"))
    return scores, steepness


@triton.jit
def kept(i, first_key, plane, key_0, key_1, offset, threshold, KEYS: tl.constexpr):
    """(queries, KEYS): the weights that dropout keeps. First_key is a multiple of 8.

    Philox 4x32-10 as the library has it (docs/semantics.md, Dropout): one call for eight keys, 16 bits each.
    """
    k0, k1 = key_0.to(tl.uint32, bitcast=True), key_1.to(tl.uint32, bitcast=True)
    groups = (first_key // 8 + tl.arange(0, KEYS // 8)).to(tl.uint32)[None, :]
    queries = i.to(tl.uint32)[:, None]
    nothing = (groups ^ groups) | (queries ^ queries)
    c0, c1 = nothing | groups, nothing | queries
    c2, c3 = nothing | plane.to(tl.uint32), nothing | offset.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(10):
        high_0, low_0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high_2, low_2 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high_2 ^ c1 ^ k0, low_2, high_0 ^ c3 ^ k1, low_0
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    # Words 0 to 3 side by side, each as its lower and upper half: the order of the keys.
    words = tl.join(tl.join(c0, c2), tl.join(c1, c3))
    bits = tl.join(words & 0xFFFF, words >> 16)
    return tl.reshape(bits, (i.shape[0], KEYS)).to(tl.int32) < threshold
