"""Varlen sequences: flash_attn's varlen functions against each sequence on its own."""

from __future__ import annotations

import pytest
import torch

from flash_attn import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flash_attn.bert_padding import pad_input, unpad_input
from reference import attention, check, heads_of, name_of, random_slopes, sample

CASES = sample(
    14,
    5,
    dtype=[torch.float16, torch.bfloat16],
    kind=["mha", "gqa", "mqa"],
    d=[32, 59, 64, 128],
    causal=[False, True],
    local=[False, True],
    alibi=[False, True],
    softcap=[0.0, 20.0],
    dropout=[0.0, 0.17],
)
LENGTHS_Q = [1, 127, 0, 33, 64]
LENGTHS_K = [70, 127, 12, 5, 203]


def begins(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_output_and_gradients(case: dict) -> None:
    dtype, d, p = case["dtype"], case["d"], case["dropout"]
    heads, heads_k = heads_of(case["kind"])
    window = (40, 9) if case["local"] else (-1, -1)
    cu_q, cu_k = begins(LENGTHS_Q), begins(LENGTHS_K)
    batch = len(LENGTHS_Q)
    q = torch.randn(int(cu_q[-1]), heads, d).to(dtype).requires_grad_()
    k = torch.randn(int(cu_k[-1]), heads_k, d).to(dtype).requires_grad_()
    v = torch.randn(int(cu_k[-1]), heads_k, d).to(dtype).requires_grad_()
    slopes = random_slopes(batch, heads) if case["alibi"] else None
    out, lse, s_dmask = flash_attn_varlen_func(
        q,
        k,
        v,
        cu_q,
        cu_k,
        max(LENGTHS_Q),
        max(LENGTHS_K),
        p,
        causal=case["causal"],
        window_size=window,
        softcap=case["softcap"],
        alibi_slopes=slopes,
        return_attn_probs=True,
    )
    assert lse.shape == (heads, q.shape[0])
    results = {}
    for exact in (True, False):
        parts = []
        for n, (sq, sk) in enumerate(zip(LENGTHS_Q, LENGTHS_K)):
            rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
            keep = s_dmask[n : n + 1, :, :sq, :sk] >= 0 if p else None
            part, _ = attention(
                q[None, rows],
                k[None, keys],
                v[None, keys],
                causal=case["causal"],
                window=window,
                softcap=case["softcap"],
                slopes=None if slopes is None else slopes[n : n + 1],
                keep=keep,
                dropout_p=p,
                exact=exact,
            )
            parts.append(part[0])
        results[exact] = torch.cat(parts)
    check("out", out, results[True], results[False], 2, 1e-5 if case["causal"] else 0)
    dout = torch.randn_like(out)
    grads = [torch.autograd.grad(x, (q, k, v), dout) for x in (out, results[True], results[False])]
    for name, *three in zip(("dq", "dk", "dv"), *grads):
        check(name, *three, 3, 1e-5 if case["causal"] else 0)


def test_padded_batch_round_trip() -> None:
    """unpad, packed attention, pad: equals the padded batch with a mask."""
    x = torch.randn(3, 40, 3, 4, 32)
    lengths = torch.tensor([40, 7, 23])
    mask = torch.arange(40)[None] < lengths[:, None]
    packed, indices, cu, longest, used = unpad_input(x, mask)
    assert longest == 40 and used.tolist() == lengths.tolist()
    out = flash_attn_varlen_qkvpacked_func(packed, cu, longest, causal=True)
    padded = pad_input(out, indices, 3, 40)
    expected, _ = attention(*x.unbind(2), causal=True, mask=mask[:, None, None])
    torch.testing.assert_close(padded[mask], expected[mask], rtol=1e-4, atol=1e-5)
    assert (padded[~mask] == 0).all()
    q, kv = packed[:, 0], packed[:, 1:]
    again = flash_attn_varlen_kvpacked_func(q, kv, cu, cu, longest, longest, causal=True)
    assert torch.equal(again, out)


@pytest.mark.parametrize("page", [1, 16, 256])
def test_pages(page: int) -> None:
    """block_table: keys scattered over pages of any size, in any order."""
    lengths_q, lengths_k = [5, 40, 1], [90, 40, 300]
    cu_q, cu_k = begins(lengths_q), begins(lengths_k)
    q = torch.randn(sum(lengths_q), 4, 64)
    k, v = torch.randn(sum(lengths_k), 2, 64), torch.randn(sum(lengths_k), 2, 64)
    baseline = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 300, causal=True)
    per = -(-max(lengths_k) // page)
    order = torch.randperm(3 * per)
    table = order.view(3, per).int()
    k_pages, v_pages = torch.zeros(3 * per, page, 2, 64), torch.zeros(3 * per, page, 2, 64)
    for n, length in enumerate(lengths_k):
        for j in range(length):
            k_pages[table[n, j // page], j % page] = k[cu_k[n] + j]
            v_pages[table[n, j // page], j % page] = v[cu_k[n] + j]
    paged = flash_attn_varlen_func(
        q, k_pages, v_pages, cu_q, cu_k, 40, 300, causal=True, block_table=table
    )
    torch.testing.assert_close(paged, baseline, rtol=1e-5, atol=1e-6)
