"""Kernels compiled by Triton: each entry has its arguments and its NumPy reference.

They are compiled ahead of time for an AMD target and run on the simulator, so they show what
another compiler makes of the same instruction set.
"""

import numpy as np
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.jit
def gelu(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n)
    t = 0.7978845608 * (v + 0.044715 * v * v * v)
    e = tl.exp(2 * t)
    tl.store(out + i, 0.5 * v * (1 + (e - 1) / (e + 1)), i < n)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + i, i < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * columns + i, e / tl.sum(e, 0), i < columns)


@triton.jit
def layer_norm(x, w, b, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < columns
    v = tl.load(x + row * columns + i, m, other=0.0)
    mean = tl.sum(v, 0) / columns
    d = tl.where(m, v - mean, 0.0)
    r = 1 / tl.sqrt(tl.sum(d * d, 0) / columns + 1e-5)
    tl.store(out + row * columns + i, d * r * tl.load(w + i, m) + tl.load(b + i, m), m)


@triton.jit
def rms_norm(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < columns
    v = tl.load(x + row * columns + i, m, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-6)
    tl.store(out + row * columns + i, (v * r).to(tl.float16), m)


@triton.jit
def row_sum(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + i, i < columns, other=0.0)
    tl.store(out + row, tl.sum(total, 0))


@triton.jit
def row_argmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + i, i < columns, other=-float("inf"))
    tl.store(out + row, tl.argmax(v, 0))


@triton.jit
def running_sum(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + i, i < columns, other=0)
    tl.store(out + row * columns + i, tl.cumsum(v, 0), i < columns)


@triton.jit
def transpose(x, out, rows, columns, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + r[:, None] * columns + c[None, :])
    tl.store(out + c[:, None] * rows + r[None, :], tl.trans(v))


@triton.jit
def count_atomically(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0)
    tl.atomic_add(out + (v & 15), 1, i < n)


@triton.jit
def random_numbers(out, seed, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.rand(seed, i), i < n)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :])
        y = tl.load(b + k[:, None] * N + n[None, :])
        acc = tl.dot(x, y, acc, input_precision="ieee")
    tl.store(c + m[:, None] * N + n[None, :], acc)


@triton.jit
def attention(
    q,
    k,
    v,
    out,
    L,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    base = tl.program_id(1) * L * D
    x = tl.load(q + base + m[:, None] * D + d[None, :])
    largest = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = (tl.program_id(0) + 1) * BM if CAUSAL else L
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        y = tl.load(k + base + n[None, :] * D + d[:, None])
        s = tl.dot(x, y) * (scale * 1.44269504)
        if CAUSAL:
            s = tl.where(m[:, None] >= n[None, :], s, -1e30)
        new = tl.maximum(largest, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(largest - new)
        total = total * shrink + tl.sum(p, 1)
        z = tl.load(v + base + n[:, None] * D + d[None, :])
        acc = tl.dot(p.to(z.dtype), z, acc * shrink[:, None])
        largest = new
    tl.store(out + base + m[:, None] * D + d[None, :], acc / total[:, None])


def philox_uniform(seed, n):
    """tl.rand in NumPy: Philox4x32-10 of the offset, first word to [0, 1)."""
    c = [np.arange(n, dtype=np.uint32), *(np.zeros(n, np.uint32) for _ in range(3))]
    k0, k1 = np.uint32(seed), np.uint32(0)
    for _ in range(10):
        p0 = c[0].astype(np.uint64) * np.uint64(0xD2511F53)
        p1 = c[2].astype(np.uint64) * np.uint64(0xCD9E8D57)
        h0, l0 = (p0 >> np.uint64(32)).astype(np.uint32), p0.astype(np.uint32)
        h1, l1 = (p1 >> np.uint64(32)).astype(np.uint32), p1.astype(np.uint32)
        c = [h1 ^ c[1] ^ k0, l1, h0 ^ c[3] ^ k1, l0]
        k0 = np.uint32((int(k0) + 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint32((int(k1) + 0xBB67AE85) & 0xFFFFFFFF)
    x = c[0].astype(np.int32)
    x = np.where(x < 0, -x - 1, x)
    return (x * np.float32(4.6566127342e-10)).astype(np.float32)


def attend(q, k, v, causal):
    s = np.einsum("hmd,hnd->hmn", q, k) / np.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hmn,hnd->hmd", p / p.sum(-1, keepdims=True), v)


def cases(rng):
    """(name, kernel, arguments, constants, grid, expected, tolerance, warps); 'out' arrays are
    last.
    """

    def f32(*s):
        return rng.standard_normal(s).astype(np.float32)

    def f16(*s):
        return rng.standard_normal(s).astype(np.float16)

    def ints(*s):
        return rng.integers(0, 1000, s).astype(np.int32)

    n = 1000
    x, y = f32(n), f32(n)
    yield "add", add, [x, y, np.zeros(n, np.float32), n], {"BLOCK": 256}, (4,), x + y, 0, 4
    t = np.tanh(0.7978845608 * (x + 0.044715 * x**3))
    yield (
        "gelu",
        gelu,
        [x, np.zeros(n, np.float32), n],
        {"BLOCK": 256},
        (4,),
        0.5 * x * (1 + t),
        1e-5,
        4,
    )
    r = f32(5, 300)
    e = np.exp(r - r.max(1, keepdims=True))
    yield (
        "softmax",
        softmax,
        [r, np.zeros_like(r), 300],
        {"BLOCK": 512},
        (5,),
        e / e.sum(1, keepdims=True),
        1e-6,
        4,
    )
    w, b = f32(300), f32(300)
    norm = (r - r.mean(1, keepdims=True)) / np.sqrt(r.var(1, keepdims=True) + 1e-5)
    yield (
        "layer_norm",
        layer_norm,
        [r, w, b, np.zeros_like(r), 300],
        {"BLOCK": 512},
        (5,),
        norm * w + b,
        1e-4,
        4,
    )
    h = f16(5, 300)
    rms = h / np.sqrt((h.astype(np.float32) ** 2).mean(1, keepdims=True) + 1e-6)
    yield "rms_norm", rms_norm, [h, np.zeros_like(h), 300], {"BLOCK": 512}, (5,), rms, 4e-3, 4
    yield (
        "row_sum",
        row_sum,
        [r, np.zeros(5, np.float32), 300],
        {"BLOCK": 128},
        (5,),
        r.sum(1),
        1e-4,
        2,
    )
    yield (
        "row_argmax",
        row_argmax,
        [r, np.zeros(5, np.int32), 300],
        {"BLOCK": 512},
        (5,),
        r.argmax(1),
        0,
        4,
    )
    z = ints(5, 300)
    yield (
        "running_sum",
        running_sum,
        [z, np.zeros_like(z), 300],
        {"BLOCK": 512},
        (5,),
        z.cumsum(1),
        0,
        4,
    )
    m = f32(64, 96)
    yield (
        "transpose",
        transpose,
        [m, np.zeros((96, 64), np.float32), 64, 96],
        {"BLOCK": 32},
        (2, 3),
        m.T,
        0,
        4,
    )
    v = ints(n)
    yield (
        "count_atomically",
        count_atomically,
        [v, np.zeros(16, np.int32), n],
        {"BLOCK": 256},
        (4,),
        np.bincount(v & 15, minlength=16),
        0,
        4,
    )
    yield (
        "random_numbers",
        random_numbers,
        [np.zeros(n, np.float32), 42, n],
        {"BLOCK": 256},
        (4,),
        philox_uniform(42, n),
        1e-7,
        4,
    )
    a, b = f16(64, 96), f16(96, 64)
    want = a.astype(np.float32) @ b.astype(np.float32)
    yield (
        "matmul_f16",
        matmul,
        [a, b, np.zeros((64, 64), np.float32), 64, 64, 96],
        {"BM": 32, "BN": 32, "BK": 32},
        (2, 2),
        want,
        2e-3,
        4,
    )
    ai, bi = f32(64, 64), f32(64, 64)
    yield (
        "matmul_f32",
        matmul,
        [ai, bi, np.zeros((64, 64), np.float32), 64, 64, 64],
        {"BM": 32, "BN": 32, "BK": 32},
        (2, 2),
        ai @ bi,
        2e-2,
        4,
    )
    for causal in (False, True):
        q, k, vv = f16(2, 128, 64), f16(2, 128, 64), f16(2, 128, 64)
        want = attend(*(t.astype(np.float32) for t in (q, k, vv)), causal)
        name = "attention_causal" if causal else "attention"
        consts = {"D": 64, "BM": 64, "BN": 32, "CAUSAL": causal}
        yield (
            name,
            attention,
            [q, k, vv, np.zeros((2, 128, 64), np.float32), 128, 0.125],
            consts,
            (2, 2),
            want,
            4e-3,
            4,
        )
