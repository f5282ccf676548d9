"""FA3 over a KV cache, as in upstream's tests: paging, page table rows, left padding, rotary
embedding, chunks.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import flash_attn_interface as fa3
from flash_attn import flash_attn_with_kvcache
from flash_attn.layers.rotary import apply_rotary_emb
from reference import name_of, sample


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def expected(q, k, v, first: int, causal: bool, window, chunk: int, exact: bool):
    """One sequence, (sq, h, d) over (sk, hk, d), of whose keys those before `first` are padding."""
    dtype = q.dtype
    if exact:
        q, k, v = q.float(), k.float(), v.float()
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k * q.shape[-1] ** -0.5)
    sq, sk = scores.shape[1:]
    position = torch.arange(sq)[:, None] + sk - sq
    key = torch.arange(sk)[None]
    visible = (key >= first).expand(sq, sk).clone()
    left, right = (int(x) for x in window)
    right = 0 if causal else right
    if left >= 0:
        visible &= key >= position - left
    if right >= 0:
        visible &= key <= position + right
    if chunk:  # chunks count from the first key that is not padding
        mine = torch.div(position - first, chunk, rounding_mode="floor")
        visible &= mine == torch.div(key - first, chunk, rounding_mode="floor")
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    weights = weights.masked_fill(~visible.any(-1, keepdim=True), 0.0)
    return torch.einsum("hqk,khd->qhd", weights, v).to(dtype)


CASES = sample(
    24,
    5,
    seqlen_q=[1, 5],
    heads_k=[1, 3, 6],
    mode=["full", "causal", "local"],
    page_size=[None, 1, 4, 16],
    new=[False, True],
    rotary=[0, 16, 32],
    interleaved=[False, True],
    leftpad=[False, True],
    batch_idx=[False, True],
    packed=[False, True],
    num_splits=[1, 3, 0],
)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_cache(case) -> None:
    batch, sk, heads, d, dtype = 3, 48, 6, 32, torch.bfloat16
    sq, hk, page = case["seqlen_q"], case["heads_k"], case["page_size"]
    rows = batch * (2 if case["batch_idx"] else 1)
    causal = case["mode"] == "causal"
    window = torch.randint(0, sk, (2,)) if case["mode"] == "local" else (-1, -1)
    chunk = int(torch.randint(1, 2 * sk, ())) if case["mode"] != "full" else 0
    index = torch.randperm(rows)[:batch].int() if case["batch_idx"] else None
    table = None
    if page is None:
        k_cache, v_cache = (torch.randn(rows, sk, hk, d, dtype=dtype) for _ in range(2))
    else:
        table = torch.randperm(3 * rows * sk // page).int().view(rows, -1)
        k_cache, v_cache = (torch.randn(table.numel(), page, hk, d, dtype=dtype) for _ in range(2))
    lengths = torch.randint(0 if case["new"] else 1, sk - sq + 1, (batch,)).int()
    pad = (torch.rand(batch) * lengths).int() if case["leftpad"] else None
    queries = [int(n) for n in torch.randint(1, sq + 1, (batch,))] if case["packed"] else [sq] * 3
    q = [torch.randn(n, heads, d, dtype=dtype) for n in queries]
    k, v = ([torch.randn(n, hk, d, dtype=dtype) for n in queries] for _ in range(2))
    pack = torch.cat if case["packed"] else torch.stack
    arguments = {}
    if case["packed"]:
        cu = F.pad(torch.tensor(queries).cumsum(0), (1, 0)).int()
        arguments = {"cu_seqlens_q": cu, "max_seqlen_q": max(queries)}
    angle = torch.rand(sk, case["rotary"] // 2) * 2 * math.pi
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    rotated = case["new"] and case["rotary"] > 0
    if case["new"]:
        arguments.update(k=pack(k), v=pack(v))
        if case["packed"]:
            arguments["cu_seqlens_k_new"] = cu
    if rotated:
        arguments.update(rotary_cos=cos, rotary_sin=sin)
    plan = fa3.get_scheduler_metadata(
        batch, sq, sk, heads, hk, d, lengths, dtype, page_size=page, causal=causal,
        window_size=window, attention_chunk=chunk, num_splits=case["num_splits"],
    )  # fmt: skip
    k_before, v_before = k_cache.clone(), v_cache.clone()
    out, lse, *rest = fa3.flash_attn_with_kvcache(
        pack(q), k_cache, v_cache, cache_seqlens=lengths, cache_batch_idx=index,
        cache_leftpad=pad, page_table=table, rotary_seqlens=lengths, causal=causal,
        window_size=window, attention_chunk=chunk, rotary_interleaved=case["interleaved"],
        scheduler_metadata=plan, num_splits=case["num_splits"], return_softmax_lse=True,
        **arguments,
    )  # fmt: skip
    assert lse.dtype == torch.float32 and len(rest) == 2
    assert lse.shape == ((heads, sum(queries)) if case["packed"] else (batch, heads, sq))
    outs = out.split(queries) if case["packed"] else out
    for n in range(batch):
        row, used = n if index is None else int(index[n]), int(lengths[n])

        def of(cache, row=row):
            return cache[row] if table is None else cache[table[row].long()].flatten(0, 1)

        keys, values, query = of(k_before)[:used], of(v_before)[:used], q[n]
        if rotated:

            def rotate(x, together, used=used):
                shape = x.shape
                x = x.reshape(1, 1, -1, d) if together else x[None]
                x = apply_rotary_emb(
                    x, cos, sin, interleaved=case["interleaved"], seqlen_offsets=used
                )
                return x.reshape(shape)

            query = rotate(query, case["mode"] == "full")
        if case["new"]:
            appended = rotate(k[n], False) if rotated else k[n]
            keys, values = torch.cat((keys, appended)), torch.cat((values, v[n]))
            assert torch.equal(of(v_cache)[: len(values)], values)
            torch.testing.assert_close(of(k_cache)[: len(keys)], keys, rtol=1e-3, atol=1e-3)
            keys = of(k_cache)[: len(keys)]
        first = 0 if pad is None else int(pad[n])
        arguments_ = (query, keys, values, first, causal, window, chunk)
        exact, baseline = expected(*arguments_, True), expected(*arguments_, False)
        error = (outs[n] - exact).abs().max().item()
        assert error <= 2 * (baseline - exact).abs().max().item() + 1e-5


def test_rotary_seqlens_without_rotary() -> None:
    """It has no effect, as in upstream, but must be a tensor."""
    q, cache, used = torch.randn(2, 1, 2, 32), torch.randn(2, 9, 2, 32), ints(4, 9)
    baseline = fa3.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=used)
    arguments = fa3.flash_attn_with_kvcache(
        q, cache, cache, cache_seqlens=used, rotary_seqlens=used
    )
    assert torch.equal(arguments, baseline)
    assert torch.equal(
        fa3._flash_attn_forward(q, cache, cache, seqused_k=used, seqlens_rotary=used)[0], baseline
    )
    for call in (
        lambda: fa3.flash_attn_with_kvcache(q, cache, cache, rotary_seqlens=3),
        lambda: fa3._flash_attn_forward(q, cache, cache, seqlens_rotary=3),
    ):
        with pytest.raises(TypeError, match="rotary"):
            call()


@pytest.mark.parametrize("append", [False, True])
def test_lengths_beyond_the_table(append: bool) -> None:
    """Both interfaces name the table, as upstream's message does."""
    q, pages = torch.randn(1, 1, 2, 32), torch.randn(2, 16, 2, 32)
    new = {"k": torch.randn(1, 1, 2, 32), "v": torch.randn(1, 1, 2, 32)} if append else {}
    arguments = {"cache_seqlens": ints(32 if append else 33), **new}
    table = ints(1, 0).view(1, 2)
    words = (
        "exceeds the KV cache: sequence 0 has 32 keys and 1 new ones; its capacity is 32"
        if append
        else "has a capacity of 32 keys per sequence; sequence 0 has 33"
    )
    with pytest.raises(RuntimeError, match=f"^block_table {words}"):
        flash_attn_with_kvcache(q, pages, pages.clone(), block_table=table, **arguments)
    with pytest.raises(RuntimeError, match=rf"^page_table \(block_table\) {words}"):
        fa3.flash_attn_with_kvcache(q, pages, pages.clone(), page_table=table, **arguments)


def test_rows_of_the_page_table() -> None:
    q, pages = torch.randn(2, 1, 2, 32), torch.randn(6, 4, 2, 32)
    table, used = ints(0, 1, 2, 3, 4, 5).view(3, 2), ints(8, 3)
    arguments = {"cache_seqlens": used}
    mine = fa3.flash_attn_with_kvcache(
        q, pages, pages, page_table=table, cache_batch_idx=ints(2, 0), **arguments
    )
    rows = table[[2, 0]]
    assert torch.equal(
        mine, fa3.flash_attn_with_kvcache(q, pages, pages, page_table=rows, **arguments)
    )
    for bad in (ints(3, 0), ints(-1, 0), ints(0, 1)[None], ints(0, 1).float()):
        with pytest.raises(ValueError, match="^cache_batch_idx"):
            fa3.flash_attn_with_kvcache(
                q, pages, pages, page_table=table, cache_batch_idx=bad, **arguments
            )


def test_sinks_over_a_cache() -> None:
    q, cache = torch.randn(2, 1, 2, 32), torch.randn(2, 9, 2, 32)
    dense = fa3.flash_attn_func(q, cache, cache, s_aux=torch.tensor([1.0, -2.0]))
    found = fa3.flash_attn_with_kvcache(q, cache, cache, s_aux=torch.tensor([1.0, -2.0]))
    torch.testing.assert_close(found, dense)


def test_compiled_cache() -> None:
    """flash_attn_with_kvcache in a whole graph; lengths may also be one int."""
    q, new = torch.randn(2, 1, 2, 32), torch.randn(2, 1, 2, 32)
    cache = torch.randn(2, 9, 2, 32)

    def step(q, k_cache, v_cache, new):
        return fa3.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=4) * 2

    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        k_cache, v_cache = cache.clone(), cache.clone()
        results.append((function(q, k_cache, v_cache, new), k_cache, v_cache))
    for eager, compiled in zip(*results):
        torch.testing.assert_close(eager, compiled)
    assert torch.equal(results[1][1][:, 4], new[:, 0])
