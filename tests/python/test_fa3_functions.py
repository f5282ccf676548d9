"""FA3's functions without a cache, as in upstream's tests: hints, head dimensions, chunks,
lengths.
"""

from __future__ import annotations

import pytest
import torch

import flash_attn_interface as fa3
from reference import attention, check, name_of, sample


def chunks(sq: int, sk: int, chunk: int) -> torch.Tensor:
    position = torch.arange(sq)[:, None] + sk - sq
    mine = torch.div(position, chunk, rounding_mode="floor")
    return (mine == torch.arange(sk)[None] // chunk)[None, None]


CASES = sample(
    12,
    1,
    lengths=[(1, 1), (33, 49), (60, 3), (3, 60)],
    heads_k=[1, 2, 6],
    d_dv=[(64, 64), (64, 256), (192, 128)],
    mode=["full", "causal", "local"],
    softcap=[0.0, 15.0],
    chunked=[False, True],
    qv=[False, True],
)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_dense(case) -> None:
    (sq, sk), (d, dv), hk = case["lengths"], case["d_dv"], case["heads_k"]
    q, k, v = (
        torch.randn(2, n, h, size, dtype=torch.bfloat16, requires_grad=True)
        for n, h, size in ((sq, 6, d), (sk, hk, d), (sk, hk, dv))
    )
    causal = case["mode"] == "causal"
    window = torch.randint(0, sk, (2,)).tolist() if case["mode"] == "local" else (-1, -1)
    chunk = int(torch.randint(1, 2 * sk, ())) if case["chunked"] else 0
    arguments = {"causal": causal, "window": window, "softcap": case["softcap"]}
    arguments["mask"] = chunks(sq, sk, chunk) if chunk else None
    qv = torch.randn(2, sq, 6, dv, dtype=torch.bfloat16) if case["qv"] else None
    joined = (q, k, v) if qv is None else (torch.cat((q, qv), -1), torch.cat((k, v), -1), v)
    exact, baseline = (attention(*joined, **arguments, exact=exact)[0] for exact in (True, False))
    atol = 2 * (exact + 0.3 - 0.3 - exact).abs().max().item()
    for pack_gqa, num_splits, sm_margin in ((False, 1, 0), (True, 3, 8), (None, 0, 0)):
        out = fa3.flash_attn_func(
            q, k, v, causal=causal, qv=qv, window_size=window, attention_chunk=chunk,
            softcap=case["softcap"], pack_gqa=pack_gqa, num_splits=num_splits, sm_margin=sm_margin,
        )  # fmt: skip
        check("out", out, exact, baseline, 2 if case["softcap"] == 0 else 3, atol)
    dout = torch.randn_like(out)
    grads = (torch.autograd.grad(x, (q, k, v), dout) for x in (out, exact, baseline))
    for name, x, of_exact, of_baseline in zip("qkv", *grads):
        atol = 2 * (of_exact + 0.3 - 0.3 - of_exact).abs().max().item()
        check(f"d{name}", x, of_exact, of_baseline, 3, atol + (3e-4 if case["softcap"] else 0))


def test_one_long_query_among_short_ones() -> None:
    """With and without splits, for all used lengths."""
    counts = torch.ones(8, dtype=torch.int32)
    counts[5] = 64
    cu_q = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    cu_k = torch.arange(9, dtype=torch.int32) * 48
    q = torch.randn(71, 6, 64, dtype=torch.bfloat16)
    k, v = (torch.randn(8 * 48, 2, 64, dtype=torch.bfloat16) for _ in range(2))
    used = torch.randint(1, 49, (8,)).int()

    def run(num_splits: int) -> torch.Tensor:
        return fa3.flash_attn_varlen_func(
            q, k, v, cu_q, cu_k, 64, 48, seqused_k=used, causal=True, num_splits=num_splits
        )

    out, split = run(1), run(4)
    for n in range(8):
        a, b = int(cu_q[n]), int(cu_q[n + 1])
        keys, values = (x[None, n * 48 : n * 48 + int(used[n])] for x in (k, v))
        arguments = (q[None, a:b], keys, values)
        exact, baseline = (attention(*arguments, causal=True, exact=e)[0] for e in (True, False))
        for x in (out, split):
            check(f"sequence {n}", x[None, a:b], exact, baseline, 2, 1e-5)


def test_results_are_deterministic_to_the_bit() -> None:
    q, k, v = (torch.randn(2, 65, 4, 64, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    dout = torch.randn(2, 65, 4, 64, dtype=torch.bfloat16)

    def run():
        out = fa3.flash_attn_func(q, k, v, causal=True, deterministic=True)
        return out, *torch.autograd.grad(out, (q, k, v), dout)

    first = run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run()))


def test_transposed_values() -> None:
    """V_colmajor of upstream's tests: v with its sequence last in memory."""
    q, k = (torch.randn(2, 16, 2, 32) for _ in range(2))
    v = torch.randn(2, 2, 32, 16).permute(0, 3, 1, 2)
    found = fa3.flash_attn_func(q, k, v)
    torch.testing.assert_close(found, attention(q, k, v)[0], rtol=1e-4, atol=1e-5)
    raw = torch.ops.flash_attn_3.fwd(q, k, v)[0]
    torch.testing.assert_close(raw, found)
