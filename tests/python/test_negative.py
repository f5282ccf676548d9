"""Tensors with torch's negative bit, such as the imaginary part of a conjugate: their memory holds
the opposite.

Torch resolves the bit for its own operators; code that reads memory must do so as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import flash_attn_2_cuda
import rocflash
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from flash_attn_interface import flash_attn_combine
from rocflash._torch import fast


@pytest.fixture(autouse=True, params=["short", "long"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "long":
        monkeypatch.setattr(fast, "_bind", None)


def negative(x: torch.Tensor) -> torch.Tensor:
    """Equal to x, but with the bit."""
    found = torch._neg_view(-x)
    assert found.is_neg() and torch.equal(found, x)
    return found


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(1, 6, 2, 16).to(dtype) for _ in "qkv"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("asked", [{}, {"return_lse": True}], ids=str)
@pytest.mark.parametrize("which", range(3), ids=["q", "k", "v"])
def test_of_inputs(which: int, asked: dict, dtype: torch.dtype) -> None:
    arguments = inputs(dtype)
    expected = rocflash.attention(*arguments, **asked)
    arguments[which] = negative(arguments[which])
    for _ in range(2):
        found = rocflash.attention(*arguments, **asked)
        assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_of_a_conjugates_imaginary_part() -> None:
    z = torch.randn(1, 6, 2, 16, dtype=torch.complex64)
    q = z.conj().imag
    assert q.is_neg()
    _, k, v = inputs()
    assert torch.equal(flash_attn_func(q, k, v), flash_attn_func(-z.imag, k, v))


def test_after_calls_of_the_same_kind_without_it() -> None:
    """Neither way takes one for the other."""
    q, k, v = inputs()
    opposite = negative(-k)
    for _ in range(3):
        baseline, other = rocflash.attention(q, k, v), rocflash.attention(q, opposite, v)
        assert torch.equal(other, rocflash.attention(q, -k, v))
        assert not torch.equal(baseline, other)


def test_of_gradients() -> None:
    leaves = [x.requires_grad_() for x in inputs()]
    dout = torch.randn(1, 6, 2, 16)
    expected = torch.autograd.grad(rocflash.attention(*leaves), leaves, dout)
    found = torch.autograd.grad(rocflash.attention(*leaves), leaves, negative(dout))
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    # Through the bit itself, to the tensors that it views.
    found = torch.autograd.grad(
        rocflash.attention(*(torch._neg_view(-x) for x in leaves)), leaves, dout
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize(
    "option",
    [
        {"bias": torch.randn(1, 2, 6, 6)},
        {"sinks": torch.randn(2)},
        {"alibi_slopes": torch.rand(2)},
    ],
    ids=lambda o: next(iter(o)),
)
def test_of_options(option: dict) -> None:
    q, k, v = inputs()
    found = rocflash.attention(q, k, v, **{name: negative(x) for name, x in option.items()})
    assert torch.equal(found, rocflash.attention(q, k, v, **option))


def test_of_outputs() -> None:
    q, k, v = inputs()
    new = [torch.randn(1, 1, 2, 16) for _ in "kv"]
    used = torch.tensor([3]).int()

    def append(k_cache: torch.Tensor, *k_and_v: torch.Tensor) -> Any:
        return flash_attn_with_kvcache(q[:, :1], k_cache, v.clone(), *k_and_v, cache_seqlens=used)

    expected = append(k.clone(), *new)
    assert torch.equal(append(k.clone(), *map(negative, new)), expected)
    kept = negative(k)
    with pytest.raises(rocflash.InvalidArgument, match=r"^k\w* has torch's negative bit"):
        append(kept, *new)
    assert torch.equal(kept, k)
    out = torch.zeros_like(q)
    with pytest.raises(rocflash.InvalidArgument, match="^out has torch's negative bit"):
        flash_attn_2_cuda.fwd(
            q, k, v, torch._neg_view(out), None, 0.0, 0.25, False, -1, -1, 0.0, False, None
        )
    assert not out.any()


def test_of_partial_results() -> None:
    parts, lses = torch.randn(3, 2, 5, 2, 8), torch.randn(3, 2, 5, 2)
    out, lse = flash_attn_combine(parts, lses)
    found = flash_attn_combine(negative(parts), negative(lses))
    assert torch.equal(found[0], out) and torch.equal(found[1], lse)
    with pytest.raises(rocflash.InvalidArgument, match="^out has torch's negative bit"):
        flash_attn_combine(parts, lses, out=torch._neg_view(torch.zeros_like(out)))


def test_without_dlpack_flag() -> None:
    q, k, v = inputs()
    with pytest.raises(rocflash.InvalidArgument, match="^k has torch's negative bit"):
        rocflash.attention(q.numpy(), negative(k), v.numpy())
    assert np.allclose(rocflash.attention(q.numpy(), k, v.numpy()), rocflash.attention(q, k, v))
