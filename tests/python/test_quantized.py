"""Quantized keys and values: torch's float8 dtypes and int8, their scales, append and rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rocflash
from flash_attn_3 import flash_attn_interface as fa3
from rocflash import attention, decode
from rocflash._backends.problem import refuse_options
from rocflash._c.options import Options

FLOATS = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
ALL = [*FLOATS, torch.int8]
B, SQ, SK, H, HK, D = 2, 5, 40, 4, 2, 32


def close(a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def quantized(dtype: torch.dtype, *shape: int) -> Tensor:
    x = torch.randn(*shape)
    return (x * 30).round().clamp(-127, 127).to(dtype) if dtype is torch.int8 else x.to(dtype)


def inputs(
    dtype: torch.dtype, of_q: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and scales of (b, hk)."""
    torch.manual_seed(1)
    small = 1 / 30 if dtype is torch.int8 else 1.0
    return (
        torch.randn(B, SQ, H, D).to(of_q),
        quantized(dtype, B, SK, HK, D),
        quantized(dtype, B, SK, HK, D),
        small * (0.5 + torch.rand(B, HK)),
        small * (0.5 + torch.rand(B, HK)),
    )


def wide(x: Tensor, scale: Tensor) -> Tensor:
    return x.float() * scale[:, None, :, None]


@pytest.mark.parametrize("of_q", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_attention(dtype: torch.dtype, of_q: torch.dtype) -> None:
    q, k, v, ks, vs = inputs(dtype, of_q)
    expected = attention(q.float(), wide(k, ks), wide(v, vs), causal=True)
    out = attention(q, k, v, k_descale=ks, v_descale=vs, causal=True)
    assert out.dtype is of_q
    close(out.float(), expected, of_q)
    assert torch.equal(fa3.flash_attn_func(q, k, v, causal=True, k_descale=ks, v_descale=vs), out)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_code_has_torchs_value(dtype: torch.dtype) -> None:
    """With one key the output is its value."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).view(1, 1, 1, 256)
    q = torch.zeros(1, 1, 1, 256)
    zero = torch.zeros(1, 1, 1, 256, dtype=torch.uint8).view(dtype)
    for backend in ("cpu", "reference"):
        out = attention(q, zero, codes, backend=backend)
        assert torch.equal(out.nan_to_num(1234.5), codes.float().nan_to_num(1234.5))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_append_rounds_as_torch(dtype: torch.dtype) -> None:
    """Within the finite range, beyond which torch's conversion does not always saturate."""
    most = torch.finfo(dtype).max
    values = torch.cat(
        (torch.randn(20000), torch.randn(20000) * most / 4, torch.randn(5000) * 1e-3)
    )
    ties = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    ties = ties[ties.isfinite()].sort()[0]
    x = torch.cat((values.clamp(-most, most), ties, (ties[1:] + ties[:-1]) / 2))
    rows = torch.nn.functional.pad(x, (0, -len(x) % 64)).view(1, -1, 1, 64)
    cache = torch.zeros(1, rows.shape[1], 1, 64).to(dtype)
    q = torch.zeros(1, 1, 1, 64)
    decode(q, cache, cache.clone(), k=rows, v=rows, cache_seqlens=0)
    assert torch.equal(cache.float(), rows.to(dtype).float())
    small = torch.zeros(1, rows.shape[1], 1, 64).to(dtype)
    scale = torch.tensor(0.37)
    decode(q, small, small.clone(), k=rows, v=rows, cache_seqlens=0, k_descale=scale)
    assert torch.equal(small.float(), (rows / scale).clamp(-most, most).to(dtype).float())


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_append_saturates(dtype: torch.dtype) -> None:
    inf, most = float("inf"), 127 if dtype is torch.int8 else torch.finfo(dtype).max
    new = torch.tensor([1e30, -1e30, inf, -inf, float("nan"), -0.0, 0.0, 1.0]).view(1, 1, 1, 8)
    cache = torch.zeros(1, 4, 1, 8).to(dtype)
    decode(torch.zeros(1, 1, 1, 8), cache, cache.clone(), k=new, v=new, cache_seqlens=2)
    stored = cache[0, 2, 0].float().tolist()
    assert stored[:4] == [most, -most, most, -most]
    assert stored[4] == 0 if dtype is torch.int8 else stored[4] != stored[4]
    assert stored[5:] == [0, 0, 1]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_paged_decode(dtype: torch.dtype) -> None:
    """FA3's call on pages, with an append, and scales per token and head."""
    torch.manual_seed(2)
    page, pages = 8, 12
    of_codes = 1 / 30 if dtype is torch.int8 else 1.0
    k, v = (quantized(dtype, pages, page, HK, D) for _ in range(2))
    ks, vs = (of_codes * (0.5 + torch.rand(pages, page, HK)) for _ in range(2))
    table = torch.randperm(pages).view(2, 6).int()
    lengths = torch.tensor([17, 40]).int()
    q = torch.randn(B, 2, H, D).bfloat16()
    new = [torch.randn(B, 2, HK, D).bfloat16() for _ in range(2)]
    arguments: dict[str, Any] = {"page_table": table, "cache_seqlens": lengths, "causal": True}
    out = fa3.flash_attn_with_kvcache(
        q, k, v, k=new[0], v=new[1], k_descale=ks, v_descale=vs, **arguments
    )
    wide_k, wide_v = (x.float() * s[..., None] for x, s in ((k, ks), (v, vs)))
    arguments["cache_seqlens"] = lengths + 2
    expected = decode(q.float(), wide_k, wide_v, **arguments)[0]
    close(out.float(), expected, torch.bfloat16)
    for n in range(2):  # the appended rows are near what was given
        at = int(lengths[n])
        row = wide_k[table[n, at // page].item(), at % page]
        torch.testing.assert_close(row, new[0][n, 0].float(), rtol=0.2, atol=0.05)


def test_append_of_codes_copies() -> None:
    k = quantized(torch.float8_e4m3fn, 1, 8, 1, 16)
    cache, values = torch.zeros_like(k), torch.zeros_like(k)
    decode(
        torch.randn(1, 1, 1, 16), cache, values, k=k[:, :3], v=k[:, 3:6], cache_seqlens=1,
        k_descale=torch.tensor(7.0),
    )  # fmt: skip
    assert torch.equal(cache[:, 1:4].view(torch.uint8), k[:, :3].view(torch.uint8))
    assert torch.equal(values[:, 1:4].view(torch.uint8), k[:, 3:6].view(torch.uint8))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_packed(dtype: torch.dtype) -> None:
    """Varlen, with scales per sequence and head, and per token."""
    torch.manual_seed(3)
    q = torch.randn(9, H, D).half()
    k, v = quantized(dtype, 30, HK, D), quantized(dtype, 30, HK, D)
    small = 1 / 30 if dtype is torch.int8 else 1.0
    cu_q, cu_k = torch.tensor([0, 4, 9]).int(), torch.tensor([0, 18, 30]).int()
    scales = small * (0.5 + torch.rand(2, HK))
    rows = torch.cat((scales[:1].expand(18, -1), scales[1:].expand(12, -1)))
    arguments: dict[str, Any] = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": True}
    out = fa3.flash_attn_varlen_func(q, k, v, k_descale=scales, v_descale=scales, **arguments)
    wide_rows = [x.float() * rows[..., None] for x in (k, v)]
    close(out.float(), attention(q.float(), *wide_rows, **arguments), torch.float16)
    by_row = attention(q, k, v, k_descale=rows[None], v_descale=rows[None], **arguments)
    assert torch.equal(by_row, out)


def test_compile_and_fake_tensors() -> None:
    q, k, v, ks, vs = inputs(torch.float8_e4m3fn, torch.bfloat16)
    expected = attention(q, k, v, k_descale=ks, v_descale=vs)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(*tensors: Tensor) -> Any:
        q, k, v, ks, vs = tensors
        return attention(q, k, v, k_descale=ks, v_descale=vs)

    assert torch.equal(compiled(q, k, v, ks, vs), expected)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def with_cache(*tensors: Tensor) -> Any:
        q, k, v, ks, vs = tensors
        return fa3.flash_attn_with_kvcache(q, k, v, k_descale=ks, v_descale=vs)

    found = with_cache(q, k, v, ks, vs)
    assert torch.equal(found, fa3.flash_attn_with_kvcache(q, k, v, k_descale=ks, v_descale=vs))
    meta = [x.to("meta") for x in (q, k, v, ks, vs)]
    out = attention(*meta[:3], k_descale=meta[3], v_descale=meta[4])
    assert out.shape == q.shape and out.dtype is torch.bfloat16


def test_rejects_by_name() -> None:
    q, k, v, ks, _ = inputs(torch.float8_e5m2)
    with pytest.raises(ValueError, match=r"^k_descale is given; k has dtype f32 and no scale"):
        attention(q, k.float(), v.float(), k_descale=ks)
    with pytest.raises(ValueError, match=r"^k_descale has shape \(3, 2\); it must be"):
        attention(q, k, v, k_descale=torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"^v has dtype i8; it must be e5m2"):
        attention(q, k, torch.zeros(B, SK, HK, D, dtype=torch.int8))
    with pytest.raises(ValueError, match=r"^q has dtype torch.float8_e5m2; it must be float32"):
        fa3.flash_attn_func(q.to(torch.float8_e5m2), k, v, q_descale=ks)
    with pytest.raises(NotImplementedError, match=r"^qv is given and v has dtype torch.float8"):
        fa3.flash_attn_with_kvcache(q, k, v, qv=q)
    for backend in ("triton", "ck"):
        with pytest.raises(NotImplementedError, match=rf"^k_descale is a tensor.*'{backend}'"):
            refuse_options(Options(k_descale=ks), backend, ("k_descale", "v_descale"))
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match=r"^k has dtype torch.float8_e5m2 with a forward"),
    ):
        dual = torch.autograd.forward_ad.make_dual(q, q)
        attention(dual, k, v)
    out = attention(q.requires_grad_(), k, v)
    with pytest.raises(rocflash.errors.Unsupported, match=r"^k has dtype e5m2; for backward"):
        out.sum().backward()
