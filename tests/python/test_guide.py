"""flash_attention_amd: the names, masks and alignment of the AMD build guide."""

from __future__ import annotations

import pytest
import torch

import flash_attention_amd as amd
import flash_attn
from reference import attention

LENGTHS = [(21, 29), (29, 21), (7, 40), (13, 13)]


def inputs(queries: int, keys: int) -> list[torch.Tensor]:
    return [torch.randn(2, n, h, 64) for n, h in ((queries, 4), (keys, 2), (keys, 2))]


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def triangle(queries: int, keys: int) -> torch.Tensor:
    """The guide's: query i attends to keys 0 to i."""
    return torch.ones(queries, keys, dtype=torch.bool).tril()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_causal_is_top_left_aligned(lengths: tuple[int, int]) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(*lengths))
    wanted, wanted_weights = attention(q, k, v, mask=triangle(*lengths))
    out, weights = amd.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    close(out, wanted)
    close(weights, wanted_weights)
    found = torch.autograd.grad(out.square().sum(), (q, k, v))
    for x, y in zip(found, torch.autograd.grad(wanted.square().sum(), (q, k, v))):
        close(x, y)
    with torch.no_grad():
        assert torch.equal(amd.FlashAttention(causal=True)(q, k, v), out)
        assert torch.equal(amd.FlashAttentionInterface.forward(None, q, k, v, causal=True), out)
        # flash_attn's own function lines up the ends.
        theirs = flash_attn.flash_attn_func(q, k, v, causal=True)
        close(theirs, attention(q, k, v, causal=True)[0])
        assert torch.equal(theirs, out) == (lengths[0] == lengths[1])


@pytest.mark.parametrize("lengths", LENGTHS[:3], ids=str)
@pytest.mark.parametrize(
    "shape", ["(sk)", "(b, sk)", "(b, sq, sk)", "(b, 1, sq, sk)", "(b, h, sq, sk)", "(b, 1, sq, 1)"]
)
def test_masks(shape: str, lengths: tuple[int, int]) -> None:
    q, k, v = inputs(*lengths)
    sizes = {"b": 2, "h": 4, "sq": lengths[0], "sk": lengths[1], "1": 1}
    mask = torch.rand([sizes[name] for name in shape.strip("()").split(", ")]) > 0.3
    mask[..., 0] = True  # the first key is visible to every row
    four = {1: mask, 2: mask.unsqueeze(-2).unsqueeze(-2), 3: mask.unsqueeze(1), 4: mask}[mask.dim()]
    recorded = (four & triangle(*lengths)).expand(2, 4, *lengths)
    close(amd.FlashAttention(causal=True)(q, k, v, mask=mask), attention(q, k, v, mask=recorded)[0])


def test_dropout() -> None:
    q, k, v = inputs(21, 29)
    out, probabilities = amd.flash_attn_func(
        q, k, v, dropout_p=0.4, causal=True, return_attn_probs=True
    )
    wanted, weights = attention(q, k, v, mask=triangle(21, 29))
    close(probabilities, weights)  # the guide's: before dropout
    assert not torch.allclose(out, wanted, atol=0.1)
    module = amd.FlashAttention(dropout=0.9)
    assert not torch.equal(module(q, k, v), module(q, k, v))
    module.eval()
    close(module(q, k, v), attention(q, k, v)[0])


def test_everything_is_dropped() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(5, 5))
    out, probabilities = amd.flash_attn_func(q, k, v, dropout_p=1.0, return_attn_probs=True)
    assert not out.any() and probabilities.sum(-1).allclose(torch.ones(2, 4, 5))
    out.sum().backward()
    assert all(not x.grad.any() for x in (q, k, v))
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="^dropout_p is"):
            amd.flash_attn_func(q, k, v, dropout_p=p)


@pytest.mark.parametrize("lengths", [(3, 5), (5, 3), (4, 4)], ids=str)
def test_double_precision_passes_gradcheck(lengths: tuple[int, int]) -> None:
    q, k, v = (x[..., :8].double().requires_grad_() for x in inputs(*lengths))
    for causal in (False, True):
        assert torch.autograd.gradcheck(
            lambda *x, c=causal: amd.flash_attn_func(*x, causal=c, return_attn_probs=True),
            (q, k, v),
        )


def test_probabilities_have_gradients() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(7, 9))
    towards = torch.randn(2, 4, 7, 9)
    out, probabilities = amd.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    wanted_out, wanted = attention(q, k, v, mask=triangle(7, 9))
    found = torch.autograd.grad(out.sum() + (probabilities * towards).sum(), (q, k, v))
    right = torch.autograd.grad(wanted_out.sum() + (wanted * towards).sum(), (q, k, v))
    for x, y in zip(found, right):
        close(x, y)


def test_invalid_arguments_are_rejected() -> None:
    q, k, v = inputs(21, 29)
    with pytest.raises(ValueError, match="^v has shape"):
        amd.flash_attn_func(q, k, v[:, :20], causal=True)
    with pytest.raises(ValueError, match="^k has shape .* it must be"):
        amd.flash_attn_func(q, k[0], v, causal=True)
