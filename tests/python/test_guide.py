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
    """The guide's: query i sees keys 0 to i."""
    return torch.ones(queries, keys, dtype=torch.bool).tril()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_causal_counts_from_the_first_key(lengths: tuple[int, int]) -> None:
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
    "shape", ["(b, sk)", "(b, sq, sk)", "(b, 1, sq, sk)", "(b, h, sq, sk)", "(b, 1, sq, 1)"]
)
def test_masks(shape: str, lengths: tuple[int, int]) -> None:
    q, k, v = inputs(*lengths)
    sizes = {"b": 2, "h": 4, "sq": lengths[0], "sk": lengths[1], "1": 1}
    mask = torch.rand([sizes[name] for name in shape.strip("()").split(", ")]) > 0.3
    mask[..., 0] = True  # the first key is in every row's sight
    four = mask[:, None, None] if mask.dim() == 2 else mask[:, None] if mask.dim() == 3 else mask
    seen = (four & triangle(*lengths)).expand(2, 4, *lengths)
    close(amd.FlashAttention(causal=True)(q, k, v, mask=mask), attention(q, k, v, mask=seen)[0])


def test_dropout() -> None:
    q, k, v = inputs(21, 29)
    dropped = amd.flash_attn_func(q, k, v, dropout_p=0.4, causal=True, return_attn_probs=True)
    groups = v.repeat_interleave(2, 2)
    close(dropped[0], torch.einsum("bhqk,bkhd->bqhd", dropped[1], groups))
    module = amd.FlashAttention(dropout=0.9)
    assert not torch.equal(module(q, k, v), module(q, k, v))
    module.eval()
    close(module(q, k, v), attention(q, k, v)[0])


def test_what_is_wrong_is_refused() -> None:
    q, k, v = inputs(21, 29)
    with pytest.raises(ValueError, match="^v: shape"):
        amd.flash_attn_func(q, k, v[:, :20], causal=True)
    with pytest.raises(ValueError, match="^k: "):
        amd.flash_attn_func(q, k[0], v, causal=True)
