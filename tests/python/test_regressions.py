"""Regressions known from other implementations: fully masked rows, overflow, strides,
reproducibility.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward
from reference import attention, check


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_fully_masked_rows(dtype: torch.dtype) -> None:
    """More queries than keys, causal: the first rows are 0 with lse +inf, and so are gradients."""
    q, k, v = (torch.randn(1, n, 2, 64).to(dtype).requires_grad_() for n in (100, 30, 30))
    out, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (out[:, :70] == 0).all() and (lse[..., :70] == float("inf")).all()
    assert lse[..., 70:].isfinite().all()
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert (grads[0][:, :70] == 0).all()
    assert all(g.isfinite().all() for g in grads)


def test_sequence_without_keys() -> None:
    q, k = torch.randn(7, 2, 32), torch.randn(4, 2, 32)
    cu_q, cu_k = torch.tensor([0, 3, 7]).int(), torch.tensor([0, 0, 4]).int()
    out = flash_attn_varlen_func(q, k, k, cu_q, cu_k, 4, 4)
    assert (out[:3] == 0).all() and (out[3:] != 0).any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("seqlen", [1, 2, 5, 17, 128])
def test_backward_does_not_overflow(seqlen: int, d: int, causal: bool) -> None:
    """Scores of hundreds in f16, with upstream's factor 5 and 1e-3."""
    q = (torch.randn(2, seqlen, 5, d) * 5).half().requires_grad_()
    k, v = ((torch.randn(2, seqlen, 5, d) * 3).half().requires_grad_() for _ in range(2))
    out = flash_attn_func(q, k, v, causal=causal)
    exact, _ = attention(q, k, v, causal=causal)
    baseline, _ = attention(q, k, v, causal=causal, exact=False)
    check("out", out, exact, baseline, 2, 1e-3)
    dout = torch.randn_like(out)
    grads = [torch.autograd.grad(x, (q, k, v), dout) for x in (out, exact, baseline)]
    for name, *three in zip(("dq", "dk", "dv"), *grads):
        check(name, *three, 5, 1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_transposed_gradients(dtype: torch.dtype) -> None:
    """Inputs and dout whose strides are those of a transposed tensor; factor 2."""
    q, k, v = (torch.randn(2, 4, 128, 64).to(dtype).requires_grad_() for _ in range(3))
    views = [x.transpose(1, 2) for x in (q, k, v)]
    out = flash_attn_func(*views, causal=True).transpose(1, 2)
    dout = torch.randn(2, 4, 64, 128).to(dtype).transpose(2, 3)
    exact = attention(*views, causal=True)[0].transpose(1, 2)
    baseline = attention(*views, causal=True, exact=False)[0].transpose(1, 2)
    grads = [torch.autograd.grad(x, (q, k, v), dout) for x in (out, exact, baseline)]
    for name, *three in zip(("dq", "dk", "dv"), *grads):
        check(name, *three, 2, 1e-5)


def test_last_dimension_not_contiguous() -> None:
    q, k, v = (torch.randn(2, 33, 64, 4).transpose(2, 3).requires_grad_() for _ in range(3))
    assert q.stride(-1) != 1
    out = flash_attn_func(q, k, v)
    torch.testing.assert_close(out, flash_attn_func(*(x.contiguous() for x in (q, k, v))))
    dout = torch.randn(2, 33, 64, 4).transpose(2, 3)
    expected, _ = attention(q, k, v)
    for a, b in zip(
        torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(expected, (q, k, v), dout)
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_into_strided_tensors() -> None:
    """dq, dk and dv as views of one packed tensor, as others call the private backward."""
    q, k, v = (torch.randn(2, 50, 4, 64) for _ in range(3))
    scale = 64**-0.5
    out, lse, _, rng = _flash_attn_forward(q, k, v, 0.0, scale, True, -1, -1, 0.0, None, False)
    dout = torch.randn_like(out)
    packed = torch.full((2, 50, 3, 4, 64), float("nan"))
    delta = _flash_attn_backward(
        dout, q, k, v, out, lse, packed[:, :, 0], packed[:, :, 1], packed[:, :, 2],
        0.0, scale, True, -1, -1, 0.0, None, False, rng_state=rng,
    )  # fmt: skip
    torch.testing.assert_close(delta, (dout * out).sum(-1).transpose(1, 2))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(attention(*leaves, causal=True)[0], leaves, dout)
    for found, right in zip(packed.unbind(2), expected):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.17])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_results_are_bitwise_reproducible(dtype: torch.dtype, dropout: float) -> None:
    """Every run of the same call gives the same bits, gradients included."""
    q, k, v = (torch.randn(3, n, 4, 72).to(dtype).requires_grad_() for n in (130, 257, 257))
    dout = torch.randn(3, 130, 4, 72).to(dtype)
    first = None
    for _ in range(12):
        torch.manual_seed(5)
        out, lse, _ = flash_attn_func(q, k, v, dropout, causal=True, return_attn_probs=True)
        found = [out, lse, *torch.autograd.grad(out, (q, k, v), dout)]
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(found, first))


def test_threads_do_not_affect_results() -> None:
    import rocflash

    q, k, v = (torch.randn(2, 300, 4, 64) for _ in range(3))
    found = [rocflash.attention(q, k, v, causal=True, num_threads=n) for n in (1, 2, 5)]
    assert all(torch.equal(x, found[0]) for x in found)


@pytest.mark.parametrize("p", [0.0, 0.2])
def test_meta_tensors_have_result_shapes(p: float) -> None:
    """As models are sized on the device meta, with gradients."""
    q, k, v = (
        torch.empty(2, 5, h, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)
        for h in (4, 2, 2)
    )
    out = flash_attn_func(q, k, v, p, causal=True)
    assert out.is_meta and out.shape == q.shape and out.dtype is q.dtype
    out.sum().backward()
    assert v.grad.is_meta and v.grad.shape == v.shape


def test_a_scale_may_be_convertible_to_a_number() -> None:
    q, k, v = (torch.randn(1, 3, 2, 8) for _ in range(3))
    want = flash_attn_func(q, k, v, softmax_scale=0.25)
    for scale in (torch.tensor(0.25), np.float32(0.25)):
        assert torch.equal(flash_attn_func(q, k, v, softmax_scale=scale), want)
        assert torch.equal(flash_attn_with_kvcache(q, k, v, softmax_scale=scale), want)
    with pytest.raises(ValueError, match="softmax_scale requires a gradient"):
        flash_attn_func(q, k, v, softmax_scale=torch.tensor(0.25, requires_grad=True))
