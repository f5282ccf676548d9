"""flash_attn_with_kvcache: append, rotary, pages, batch index, left padding, at upstream's
tolerance.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flash_attn_interface as fa3
from flash_attn import flash_attn_with_kvcache
from flash_attn.layers.rotary import apply_rotary_emb
from reference import attention, check, name_of, sample

CASES = sample(
    40,
    5,
    dtype=[torch.float16, torch.bfloat16],
    new=[True, False],
    sq=[1, 3, 64],
    d=[32, 59, 128],
    causal=[False, True],
    local=[False, True],
    alibi=[False, True],
    rotary=["none", "pairs", "halves"],
    cache=["dense", "index", "page1", "page7", "page16", "page64", "page256"],
    leftpad=[False, True],
    splits=[0, 1, 3],
)
BATCH, HEADS, HEADS_K, LENGTH = 3, 4, 2, 320


def scatter_pages(dense: torch.Tensor, page: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages in random order that hold a dense cache, and the table that finds them."""
    per = -(-dense.shape[1] // page)
    pages = torch.randn(dense.shape[0] * per + 2, page, *dense.shape[2:]).to(dense.dtype)
    table = torch.randperm(pages.shape[0])[: dense.shape[0] * per].view(dense.shape[0], per).int()
    return pages, table


def to_pages(dense: torch.Tensor, pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    size = pages.shape[1]
    padded = torch.nn.functional.pad(dense, (0, 0, 0, 0, 0, table.shape[1] * size - dense.shape[1]))
    pages[table.long()] = padded.unflatten(1, (table.shape[1], size))
    return pages


def from_pages(pages: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    return pages[table.long()].flatten(1, 2)[:, :length]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_against_reference(case: dict[str, Any]) -> None:
    dtype, d, sq = case["dtype"], case["d"], case["sq"]
    paged = case["cache"].startswith("page")
    rotary = case["rotary"] != "none" and case["new"]
    leftpad = torch.tensor([0, 4, 17]).int() if case["leftpad"] else None
    window = (50, 20) if case["local"] else (-1, -1)
    q = torch.randn(BATCH, sq, HEADS, d).to(dtype)
    dense_k = torch.randn(BATCH, LENGTH, HEADS_K, d).to(dtype)
    dense_v = torch.randn(BATCH, LENGTH, HEADS_K, d).to(dtype)
    k, v = (torch.randn(BATCH, sq, HEADS_K, d).to(dtype) for _ in range(2))
    lengths = torch.tensor([20, 130, LENGTH - sq]).int()
    slopes = torch.rand(BATCH, HEADS) * 0.3 if case["alibi"] else None
    angles = torch.rand(LENGTH, 8) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    interleaved = case["rotary"] == "pairs"

    index = table = None
    if case["cache"] == "index":
        index = torch.tensor([4, 0, 2]).int()
        k_cache, v_cache = (torch.randn(5, LENGTH, HEADS_K, d).to(dtype) for _ in range(2))
        k_cache[index.long()], v_cache[index.long()] = dense_k, dense_v
    elif paged:
        size = int(case["cache"][4:])
        k_pages, table = scatter_pages(dense_k, size)
        k_cache = to_pages(dense_k, k_pages, table)
        v_cache = to_pages(dense_v, k_pages.clone(), table)
    else:
        k_cache, v_cache = dense_k.clone(), dense_v.clone()

    out, lse = flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k if case["new"] else None,
        v if case["new"] else None,
        cos if rotary else None,
        sin if rotary else None,
        cache_seqlens=lengths,
        cache_batch_idx=index,
        cache_leftpad=leftpad,
        block_table=table,
        causal=case["causal"],
        window_size=window,
        rotary_interleaved=interleaved,
        alibi_slopes=slopes,
        num_splits=case["splits"],
        return_softmax_lse=True,
    )
    assert lse.shape == (BATCH, HEADS, sq)

    rotated_q, rotated_k = q, k
    if rotary:
        rotated_k = apply_rotary_emb(k, cos, sin, interleaved, seqlen_offsets=lengths)
        if case["causal"] or case["local"]:
            rotated_q = apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=lengths)
        else:
            rows = q.flatten(1, 2)[:, None]
            rows = apply_rotary_emb(rows, cos, sin, interleaved, seqlen_offsets=lengths)
            rotated_q = rows[:, 0].unflatten(1, (sq, HEADS))
    used = lengths + (sq if case["new"] else 0)
    if case["new"]:
        for n in range(BATCH):
            new = slice(int(lengths[n]), int(lengths[n]) + sq)
            dense_k[n, new], dense_v[n, new] = rotated_k[n], v[n]
    results = {}
    for exact in (True, False):
        parts = []
        for n in range(BATCH):
            keys = slice(0 if leftpad is None else int(leftpad[n]), int(used[n]))
            part, _ = attention(
                rotated_q[n : n + 1],
                dense_k[n : n + 1, keys],
                dense_v[n : n + 1, keys],
                causal=case["causal"],
                window=window,
                slopes=None if slopes is None else slopes[n : n + 1],
                exact=exact,
            )
            parts.append(part)
        results[exact] = torch.cat(parts)
    check("out", out, results[True], results[False], 5 if case["alibi"] else 3, 1e-5)

    if table is not None:
        found_k, found_v = from_pages(k_cache, table, LENGTH), from_pages(v_cache, table, LENGTH)
    elif index is not None:
        found_k, found_v = k_cache[index.long()], v_cache[index.long()]
    else:
        found_k, found_v = k_cache, v_cache
    torch.testing.assert_close(found_k, dense_k, rtol=1e-3, atol=1e-3)
    assert torch.equal(found_v, dense_v)


def test_whole_cache_without_lengths() -> None:
    """cache_seqlens None means that all of the cache is valid, and an int that many for each."""
    q, k, v = (torch.randn(2, n, 2, 32) for n in (1, 50, 50))
    torch.testing.assert_close(flash_attn_with_kvcache(q, k, v), attention(q, k, v)[0])
    part, _ = attention(q, k[:, :20], v[:, :20])
    torch.testing.assert_close(flash_attn_with_kvcache(q, k, v, cache_seqlens=20), part)


def test_a_rejected_call_does_not_change_the_cache() -> None:
    """A rejected call writes nothing."""
    q, new = torch.randn(2, 3, 2, 32), torch.randn(2, 3, 2, 32)
    k_cache, v_cache = torch.randn(2, 16, 2, 32), torch.randn(2, 16, 2, 32)
    before = k_cache.clone(), v_cache.clone()
    lengths = torch.tensor([5, 13]).int()
    table = torch.tensor([[0, 1], [9, 1]]).int()
    wrong = [
        ({"cache_seqlens": torch.tensor([5, 14]).int()}, "k"),
        ({"cache_seqlens": torch.tensor([5, -1]).int()}, "cache_seqlens"),
        ({"cache_seqlens": lengths.long()}, "cache_seqlens"),
        ({"cache_seqlens": None}, "cache_seqlens"),
        ({"cache_seqlens": lengths, "softcap": -1.0}, "softcap"),
        ({"cache_seqlens": lengths, "window_size": (-3, 0)}, "window_size"),
        ({"cache_seqlens": lengths, "cache_leftpad": torch.tensor([0, 99]).int()}, "cache_leftpad"),
        (
            {"cache_seqlens": lengths, "cache_batch_idx": torch.tensor([0, 7]).int()},
            "cache_batch_idx",
        ),
        (
            {
                "cache_seqlens": torch.tensor([5, 6]).int(),
                "cache_batch_idx": torch.tensor([0, 0]).int(),
            },
            "cache_batch_idx",
        ),
        ({"cache_seqlens": lengths, "block_table": table}, "block_table"),
        ({"cache_seqlens": lengths, "rotary_cos": torch.ones(9, 4)}, "rotary_sin"),
        (
            {
                "cache_seqlens": lengths,
                "rotary_cos": torch.ones(9, 4),
                "rotary_sin": torch.ones(9, 4),
            },
            "rotary_cos",
        ),
        ({"cache_seqlens": lengths, "num_splits": -2}, "num_splits"),
    ]
    for options, name in wrong:
        with pytest.raises(ValueError, match=rf"^{name}\b"):
            flash_attn_with_kvcache(q, k_cache, v_cache, new, new, **options)
        assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1]), name


def test_block_table_bounds() -> None:
    """Upstream's regression: more keys than the table's pages hold, refused by its name."""
    pages = torch.randn(8, 16, 2, 32)
    q, new = torch.randn(1, 1, 2, 32), torch.randn(1, 1, 2, 32)
    table = torch.tensor([[3, 1]]).int()
    with pytest.raises(RuntimeError, match="block_table"):
        flash_attn_with_kvcache(
            q,
            pages,
            pages.clone(),
            new,
            new,
            cache_seqlens=torch.tensor([32]).int(),
            block_table=table,
        )


def test_fa3_packed_queries_and_new_keys() -> None:
    """FA3: packed q, packed new keys, rotary_seqlens; four results when lse is requested."""
    lengths_q, lengths_new = [3, 1], [2, 5]
    cu_q = torch.tensor([0, 3, 4]).int()
    cu_new = torch.tensor([0, 2, 7]).int()
    q = torch.randn(4, 4, 32)
    k_cache, v_cache = torch.randn(2, 40, 2, 32), torch.randn(2, 40, 2, 32)
    k, v = torch.randn(7, 2, 32), torch.randn(7, 2, 32)
    seqlens = torch.tensor([10, 20]).int()
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    for n in range(2):
        new = slice(int(seqlens[n]), int(seqlens[n]) + lengths_new[n])
        rows = slice(cu_new[n], cu_new[n + 1])
        expected_k[n, new], expected_v[n, new] = k[rows], v[rows]
    found = fa3.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        cache_seqlens=seqlens,
        cu_seqlens_q=cu_q,
        cu_seqlens_k_new=cu_new,
        max_seqlen_q=3,
        causal=True,
        return_softmax_lse=True,
    )
    assert len(found) == 4 and found[1].shape == (4, 4)
    assert torch.equal(k_cache, expected_k) and torch.equal(v_cache, expected_v)
    for n in range(2):
        used = int(seqlens[n]) + lengths_new[n]
        rows = slice(cu_q[n], cu_q[n] + lengths_q[n])
        part, _ = attention(
            q[None, rows], expected_k[n : n + 1, :used], expected_v[n : n + 1, :used], causal=True
        )
        torch.testing.assert_close(found[0][rows], part[0], rtol=1e-4, atol=1e-5)


def test_one_length_for_all_sequences_launches_no_kernel_per_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU: a row of a table of this stream's. Here tables are on the CPU."""
    from types import SimpleNamespace

    from rocflash._torch import decode

    class Gpu:
        """A device that torch makes tensors on the CPU for."""

        type, index = "cuda", 0

    made: list[tuple] = []
    real_arange, real_full = torch.arange, torch.full
    fake = SimpleNamespace(**vars(torch))
    fake.arange = lambda *x, dtype, device: made.append(x) or real_arange(*x, dtype=dtype)
    fake.full = lambda *x, dtype, device: made.append("full") or real_full(*x, dtype=dtype)
    capturing = [False]
    fake.cuda = SimpleNamespace(is_current_stream_capturing=lambda: capturing[0])
    stream = [1]
    monkeypatch.setattr(decode, "torch", fake)
    monkeypatch.setattr(decode, "current_stream", lambda _: stream[0])
    gpu = Gpu()
    decode._table.cache_clear()
    for length in range(250, 270):
        for batch in (1, 3, 4):
            found = decode._lengths(length, batch, gpu)
            assert found.tolist() == [length] * batch
            assert (
                found.dtype is torch.int32 and found.data_ptr() % 16 == 0 and found.is_contiguous()
            )
    assert made == [(0, 256), (256, 512)]
    stream[0] = 2  # may not see what another stream writes
    assert decode._lengths(250, 3, gpu).tolist() == [250] * 3
    assert made[2:] == [(0, 256)]
    capturing[0] = True  # a graph must not refer to memory that it does not own
    decode._lengths(250, 3, gpu)
    assert made[3:] == ["full"]
    decode._table.cache_clear()
