"""MLA: v is the first columns of k, with one KV head for many query heads."""

from __future__ import annotations

import pytest
import torch

import flash_attn_interface as fa3
import rocflash
from reference import attention, check
from rocflash.dropin import side_by_side

D, DV = 576, 512


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads, queries", [(16, 1), (128, 1), (20, 3)])
def test_against_reference(heads: int, queries: int, dtype: torch.dtype) -> None:
    q, rows = torch.randn(2, queries, heads, D).to(dtype), torch.randn(2, 90, 1, D).to(dtype)
    out, _ = rocflash.decode(q, rows, rows[..., :DV], causal=True)
    exact, baseline = (
        attention(q, rows, rows[..., :DV], causal=True, exact=e)[0] for e in (True, False)
    )
    check("out", out, exact, baseline, 2, 1e-6)


def test_paged_kv_and_append() -> None:
    q, rows, new = (torch.randn(2, n, h, D) for n, h in ((1, 16), (40, 1), (1, 1)))
    pages, table = torch.zeros(8, 16, 1, D), torch.randperm(8).view(2, 4).int()
    for n in range(2):
        pages[table[n].long()] = torch.nn.functional.pad(rows[n, :, 0], (0, 0, 0, 24)).view(
            4, 16, 1, D
        )
    used = torch.tensor([40, 17]).int()
    out, _ = rocflash.decode(
        q, pages, pages[..., :DV], k=new, v=new[..., :DV], page_table=table, cache_seqlens=used
    )
    for n, length in enumerate(used.tolist()):
        all_rows = torch.cat((rows[n : n + 1, :length], new[n : n + 1]), 1)
        expected = attention(q[n : n + 1], all_rows, all_rows[..., :DV])[0]
        torch.testing.assert_close(out[n : n + 1], expected, rtol=1e-5, atol=1e-5)
        page = pages[table[n, length // 16]]
        assert torch.equal(page[length % 16], new[n, 0])


def test_unsupported_arguments() -> None:
    q, rows, new = (torch.randn(1, n, h, D) for n, h in ((1, 4), (8, 1), (1, 1)))
    used = torch.tensor([7]).int()
    arguments = {"k": new, "cache_seqlens": used}
    with pytest.raises(ValueError, match="^v has its own memory; .* columns of k_new"):
        rocflash.decode(q, rows, rows[..., :DV], v=new[..., :DV].clone(), **arguments)
    angles = torch.randn(9, 32)
    with pytest.raises(ValueError, match="^rotary_cos is given and v is the first columns of k"):
        rocflash.decode(
            q,
            rows,
            rows[..., :DV],
            v=new[..., :DV],
            rotary_cos=angles,
            rotary_sin=angles,
            **arguments,
        )
    wide = torch.randn(1, 2, 1, D + 1)
    with pytest.raises(ValueError, match="^q has head dimension 577; it must be 1 to 576"):
        rocflash.attention(wide, wide, wide)


@pytest.mark.parametrize("joined", [True, False])
def test_qv(joined: bool) -> None:
    """As servers of DeepSeek's models call FA3: 64 columns of keys next to 512 of values."""
    q, rows = torch.randn(2, 1, 16, D), torch.randn(2, 50, 1, D)
    k, v = rows[..., DV:], rows[..., :DV]
    if not joined:
        k, v = k.contiguous(), v.contiguous()
    whole, values = side_by_side(k, v)
    assert (whole.data_ptr() == rows.data_ptr()) == joined
    assert torch.equal(whole, rows) and values.data_ptr() == whole.data_ptr()
    used = torch.tensor([50, 11]).int()
    out = fa3.flash_attn_with_kvcache(
        q[..., DV:].contiguous(), k, v, qv=q[..., :DV].contiguous(), cache_seqlens=used
    )
    expected, _ = rocflash.decode(q, rows, rows[..., :DV], cache_seqlens=used)
    assert torch.equal(out, expected)
