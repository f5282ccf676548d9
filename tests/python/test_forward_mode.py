"""Forward-mode AD: tangents against finite differences, and no function that drops a tangent
silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import flash_attn
import flash_attn_2_cuda
import flash_attn_interface as fa3
import rocflash
from flash_attn.layers.rotary import apply_rotary_emb
from rocflash._c.options import DEFAULTS
from rocflash.integrations import transformers as bridge


def ints(*x: int) -> Tensor:
    return torch.tensor(x, dtype=torch.int32)


def check(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """The tangent of dual tensors and of torch.func.jvp against a central difference."""
    tangents = [torch.randn_like(x) for x in inputs]
    step = 1e-3
    up, down = (function(*(x + s * t for x, t in zip(inputs, tangents))) for s in (step, -step))
    wanted = (up - down) / (2 * step)
    with forward_ad.dual_level():
        primal, tangent = forward_ad.unpack_dual(
            function(*map(forward_ad.make_dual, inputs, tangents))
        )
        assert tangent is not None
        torch.testing.assert_close(primal, function(*inputs))
        torch.testing.assert_close(tangent, wanted, rtol=1e-2, atol=2e-3)
    torch.testing.assert_close(torch.func.jvp(function, inputs, tuple(tangents))[1], tangent)


OPTIONS: list[dict[str, Any]] = [
    {"causal": True},
    {"window": (3, 1), "softcap": 2.0},
    {"attention_chunk": 4, "softmax_scale": 0.7},
    {"dropout_p": 0.4, "rng_state": torch.tensor([3, 4])},
    {"leftpad_k": ints(1, 0), "seqused_k": ints(6, 7), "seqused_q": ints(5, 3)},
    {"mask": torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)) > 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda x: next(iter(x)))
def test_tangents_of_every_option(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 7, 2, 16), torch.randn(2, 7, 2, 8)
    check(lambda *x: rocflash.attention(*x, **options), q, k, v)
    extra = torch.randn(4), torch.randn(1, 4, 5, 7), torch.rand(2, 4)

    def graded(
        q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, bias: Tensor, slopes: Tensor
    ) -> Tensor:
        return rocflash.attention(q, k, v, sinks=sinks, bias=bias, alibi_slopes=slopes, **options)

    check(graded, q, k, v, *extra)


def test_tangents_of_varlen_sequences() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(10, 4, 16), torch.randn(15, 2, 16), torch.randn(15, 2, 8)
    v[14] = torch.nan  # a row of no sequence
    starts = ints(1, 4, 4, 9), ints(0, 5, 6, 14)
    check(lambda q: flash_attn.flash_attn_varlen_func(q, k, v, *starts, 5, 8, causal=True), q)
    v[14] = 0
    check(lambda *x: fa3.flash_attn_varlen_func(*x, *starts, 5, 8), q, k, v)


def test_tangents_of_the_interfaces() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 5, 4, 16), torch.randn(1, 7, 4, 16), torch.randn(1, 7, 4, 16)
    check(flash_attn.flash_attn_func, q, k, v)
    check(flash_attn.flash_attn_qkvpacked_func, torch.stack((q, k[:, :5], v[:, :5]), 2))
    check(lambda q, qv: fa3.flash_attn_func(q, k, v, qv=qv), q, torch.randn_like(q))
    module = torch.nn.Module()
    check(
        lambda *x: bridge.attention_forward(module, *(y.transpose(1, 2) for y in x), None)[0],
        q,
        k,
        v,
    )
    cos, sin = torch.randn(9, 4), torch.randn(9, 4)
    check(lambda x: apply_rotary_emb(x, cos, sin), q)


def test_tangents_of_the_operator() -> None:
    q = torch.randn(1, 5, 2, 16)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        found = torch.ops.rocflash.forward(dual, q, q, *DEFAULTS, False)[0]
        wanted = rocflash.attention(dual, q, q)
        torch.testing.assert_close(
            forward_ad.unpack_dual(found).tangent, forward_ad.unpack_dual(wanted).tangent
        )
    with pytest.raises(
        NotImplementedError,
        match="^torch.ops.rocflash.forward was called inside a torch.func transform, which the "
        "operator does not support",
    ):
        torch.func.jvp(
            lambda q: torch.ops.rocflash.forward(q, q, q, *DEFAULTS, False)[0], (q,), (q,)
        )


def test_reverse_over_forward() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 5, 2, 16), torch.randn(1, 7, 2, 16), torch.randn(1, 7, 2, 16)

    def norm(q: Tensor) -> Tensor:
        return (
            torch.func.jvp(lambda q: rocflash.attention(q, k, v), (q,), (torch.ones_like(q),))[1]
            .square()
            .sum()
        )

    along, step = torch.randn_like(q), 1e-2
    difference = (norm(q + step * along) - norm(q - step * along)) / (2 * step)
    torch.testing.assert_close(
        (torch.func.grad(norm)(q) * along).sum(), difference, rtol=1e-2, atol=1e-3
    )


X = torch.randn(1, 4, 2, 16)
LSE = torch.zeros(1, 2, 4)
PARTS = torch.randn(2, 1, 4, 2, 16)
WITHOUT: dict[str, Callable[[Any], Any]] = {
    "decode": lambda x: rocflash.decode(x, X, X),
    "cache": lambda x: rocflash.decode(X, x, X),
    "appended": lambda x: rocflash.decode(X, X.clone(), X.clone(), k=x, v=X, cache_seqlens=0),
    "kvcache": lambda x: flash_attn.flash_attn_with_kvcache(x, X, X),
    "kvcache of 3": lambda x: fa3.flash_attn_with_kvcache(x, X, X, qv=X),
    "combine": lambda x: fa3.flash_attn_combine(PARTS * x.sum(), PARTS[..., 0]),
    "fwd": lambda x: flash_attn_2_cuda.fwd(
        x, X, X, None, None, 0.0, 0.25, False, -1, -1, 0.0, False
    ),
    "bwd": lambda x: flash_attn_2_cuda.bwd(
        x, X, X, X, X, LSE, None, None, None, None, 0.0, 0.25, False, -1, -1, 0.0, False
    ),
    "operator of 2": lambda x: torch.ops.flash_attn._flash_attn_forward(
        x, X, X, 0.0, 0.25, False, -1, -1, 0.0, None, False
    ),
    "fwd of 3": lambda x: fa3._flash_attn_forward(x, X, X, out=torch.empty_like(X)),
    "bwd of 3": lambda x: fa3._flash_attn_backward(x, X, X, X, X, LSE),
    "backward operator": lambda x: torch.ops.rocflash.backward(
        x, X, X, X, X, LSE, *DEFAULTS, [True] * 3
    ),
    "pages": lambda x: rocflash.attention(x, X, X, block_table=ints(0)[None]),
}


@pytest.mark.parametrize("function", WITHOUT.values(), ids=WITHOUT)
def test_functions_without_jvp_reject_tangents(function: Callable[[Any], Any]) -> None:
    function(X)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="tangent"):
        function(forward_ad.make_dual(X, torch.ones_like(X)))


def test_tangents_of_gradients_are_rejected() -> None:
    q = X.clone().requires_grad_()
    with forward_ad.dual_level():
        out = rocflash.attention(q, X, X)
        dual = forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out))
        with pytest.raises(NotImplementedError, match="tangents of attention's gradients"):
            torch.autograd.grad(out, q, dual)
    with pytest.raises(NotImplementedError, match="tangents of attention's gradients"):
        torch.func.jvp(
            torch.func.grad(lambda q: rocflash.attention(q, X, X).square().sum()), (X,), (X,)
        )
