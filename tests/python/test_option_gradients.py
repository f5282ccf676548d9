"""Gradients of the bias and of ALiBi's slopes, against autograd of naive attention in double."""

from __future__ import annotations

import pytest
import torch

import rocflash
from flash_attn import flash_attn_func

B, H, HK, SQ, SK, D = 2, 4, 2, 37, 53, 16
SHAPES = [
    (B, H, SQ, SK),
    (1, H, SQ, SK),
    (B, 1, SQ, SK),
    (1, 1, SQ, SK),
    (B, H, 1, SK),
    (1, H, 1, SK),
    (B, 1, SQ, 1),
    (1, 1, 1, SK),
    (1, H, 1, 1),
]


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(3)
    shapes = ((B, SQ, H, D), (B, SK, HK, D), (B, SK, HK, D))
    return [torch.randn(s, dtype=dtype).requires_grad_() for s in shapes]


def distances() -> torch.Tensor:
    return (torch.arange(SQ)[:, None] + SK - SQ - torch.arange(SK)).abs().double()


def baseline(q, k, v, bias=None, slopes=None, causal=False, softcap=0.0):
    """Attention step by step in double; slopes are (h) or (b, h)."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(H // HK, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / D**0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        scores = scores - slopes.double()[..., None, None] * distances()
    if bias is not None:
        scores = scores + bias.double()
    if causal:
        recorded = torch.arange(SK) <= torch.arange(SQ)[:, None] + SK - SQ
        scores = scores.masked_fill(~recorded, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)


def gradients(function, tensors, weight):
    out = function(*tensors)
    return torch.autograd.grad((out.double() * weight).sum(), tensors)


def agree(ours, theirs, tolerance: float) -> None:
    for x, y in zip(ours, theirs):
        assert x.dtype == y.dtype and x.shape == y.shape
        size = y.double().abs().max().item()
        assert (x.double() - y.double()).abs().max().item() <= tolerance * (1 + size)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bias_of_any_shape(shape) -> None:
    q, k, v = inputs()
    bias = torch.randn(shape, requires_grad=True)
    weight = torch.randn(B, SQ, H, D).double()
    options = {"causal": True, "softcap": 3.0}
    theirs = gradients(lambda *x: baseline(*x[:3], bias=x[3], **options), [q, k, v, bias], weight)
    ours = gradients(
        lambda *x: rocflash.attention(*x[:3], bias=x[3], **options), [q, k, v, bias], weight
    )
    agree(ours, theirs, 1e-5)


@pytest.mark.parametrize("per_batch", [False, True])
def test_slopes(per_batch: bool) -> None:
    q, k, v = inputs()
    slopes = torch.rand((B, H) if per_batch else (H,)).requires_grad_()
    weight = torch.randn(B, SQ, H, D).double()
    theirs = gradients(lambda *x: baseline(*x[:3], slopes=x[3]), [q, k, v, slopes], weight)
    ours = gradients(
        lambda *x: rocflash.attention(*x[:3], alibi_slopes=x[3]), [q, k, v, slopes], weight
    )
    agree(ours, theirs, 1e-4)
    drop_in = gradients(
        lambda *x: flash_attn_func(*x[:3], alibi_slopes=x[3]), [q, k, v, slopes], weight
    )
    for x, y in zip(drop_in, ours):
        assert torch.equal(x, y)


def test_only_the_bias_requires_a_gradient() -> None:
    q, k, v = (x.detach() for x in inputs())
    bias = torch.randn(1, H, SQ, SK, requires_grad=True)
    assert rocflash.attention(q, k, v, bias=bias).requires_grad
    weight = torch.randn(B, SQ, H, D).double()
    theirs = gradients(lambda x: baseline(q, k, v, bias=x), [bias], weight)
    agree(gradients(lambda x: rocflash.attention(q, k, v, bias=x), [bias], weight), theirs, 1e-5)
    with torch.no_grad():
        assert not rocflash.attention(q, k, v, bias=bias).requires_grad


def test_an_expanded_bias() -> None:
    """Each of the elements has a gradient, and torch sums them where the memory is one."""
    q, k, v = inputs()
    small = torch.randn(1, H, 1, SK, requires_grad=True)
    weight = torch.randn(B, SQ, H, D).double()
    ours = gradients(
        lambda x: rocflash.attention(q, k, v, bias=x.expand(B, H, SQ, SK)), [small], weight
    )
    agree(ours, gradients(lambda x: baseline(q, k, v, bias=x), [small], weight), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes_of_the_bias(dtype: torch.dtype) -> None:
    """The gradient has the bias's dtype; what is known is that of scores in the input's dtype."""
    q, k, v = inputs(dtype)
    weight = torch.randn(B, SQ, H, D).double()
    for of_bias in (dtype, torch.float32):
        bias = torch.randn(1, H, SQ, SK, dtype=of_bias).requires_grad_()
        theirs = gradients(lambda x: baseline(q, k, v, bias=x), [bias], weight)
        ours = gradients(lambda x: rocflash.attention(q, k, v, bias=x), [bias], weight)
        agree(ours, theirs, 2e-2)


def test_gradcheck_of_the_reference() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 3, 2, 4, dtype=torch.float64, requires_grad=True) for _ in "qkv")
    bias = torch.randn(1, 2, 1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *x: rocflash.attention(*x[:3], bias=x[3], causal=True, backend="reference"),
        (q, k, v, bias),
    )


def test_compiled_in_one_graph() -> None:
    q, k, v = inputs()
    bias = torch.randn(1, H, SQ, SK, requires_grad=True)
    slopes = torch.rand(H).requires_grad_()

    def layer(q, k, v, bias, slopes):
        return rocflash.attention(q * 2, k, v, bias=bias * 3, alibi_slopes=slopes) + 1

    weight = torch.randn(B, SQ, H, D).double()
    tensors = [q, k, v, bias, slopes]
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for x, y in zip(gradients(compiled, tensors, weight), gradients(layer, tensors, weight)):
        assert torch.equal(x, y)


def test_functional_transforms() -> None:
    q, k, v = (x.detach() for x in inputs())
    bias = torch.randn(1, H, SQ, SK)
    weight = torch.randn(B, SQ, H, D)

    def loss(bias):
        return (rocflash.attention(q, k, v, bias=bias) * weight).sum()

    found = torch.func.grad(loss)(bias)
    expected = torch.autograd.grad(loss(bias.requires_grad_()), bias)[0]
    assert torch.equal(found, expected)


def test_results_do_not_depend_on_threads() -> None:
    q, k, v = inputs()
    bias = torch.randn(1, 1, SQ, SK, requires_grad=True)
    slopes = torch.rand(H).requires_grad_()
    found = []
    for threads in (1, 2, 5):
        out = rocflash.attention(q, k, v, bias=bias, alibi_slopes=slopes, num_threads=threads)
        found.append(torch.autograd.grad(out.sum() + (out**2).sum(), (bias, slopes)))
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(other, found[0]))


def test_dropout_and_masked_keys() -> None:
    """Where the bias hides a key its gradient is exactly 0, with dropout too."""
    q, k, v = inputs()
    bias = torch.randn(B, H, SQ, SK)
    bias[:, :, :, 5:9] = float("-inf")
    bias.requires_grad_()
    rocflash.attention(q, k, v, bias=bias, dropout_p=0.3).sum().backward()
    assert bias.grad[..., 5:9].eq(0).all() and bias.grad[..., 9:].ne(0).any()
