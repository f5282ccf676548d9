"""torch's features around a call: opcheck, compile, functional gradients, autocast, checkpoints,
seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import flash_attn  # noqa: F401  (registers flash_attn's operators)
import rocflash
from flash_attn import flash_attn_func
from reference import attention
from rocflash._c.options import Options


def inputs(*, grad: bool = True, dtype: torch.dtype = torch.float32, d: int = 32):
    shapes = ((2, 19, 4, d), (2, 23, 2, d), (2, 23, 2, d))
    return [torch.randn(s, dtype=dtype).requires_grad_(grad) for s in shapes]


OPTIONS = {
    "no options": Options(),
    "all": Options(
        mask=torch.ones(2, 1, 19, 23, dtype=torch.bool).tril(3),
        alibi_slopes=torch.rand(4),
        bias=torch.randn(1, 4, 1, 23),
        sinks=torch.randn(4),
        rng_state=torch.tensor([3, 4]),
        causal=True,
        window_left=9,
        attention_chunk=16,
        softmax_scale=0.2,
        softcap=5.0,
        dropout_p=0.2,
        deterministic=True,
        num_threads=1,
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("weights", [False, True])
def test_opcheck_forward(name: str, weights: bool) -> None:
    o = OPTIONS[name]
    torch.library.opcheck(torch.ops.rocflash.forward.default, (*inputs(), *o, weights))


def test_opcheck_packed() -> None:
    cu = torch.tensor([0, 5, 19]).int()
    q, k, v = (torch.randn(19, 4, 32, requires_grad=True) for _ in range(3))
    o = Options(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=14, max_seqlen_k=14)
    torch.library.opcheck(torch.ops.rocflash.forward.default, (q, k, v, *o, True))


def test_opcheck_backward() -> None:
    q, k, v = inputs(grad=False)
    o = Options(sinks=torch.randn(4), bias=torch.randn(1, 4, 1, 23), alibi_slopes=torch.rand(4))
    out, lse, _ = torch.ops.rocflash.forward(q, k, v, *o, False)
    for needed in ([True] * 7, [False, True, False, False, False, True]):
        arguments = (torch.randn_like(out), q, k, v, out, lse, *o, needed)
        torch.library.opcheck(torch.ops.rocflash.backward.default, arguments)


def test_backward_of_a_graph_with_fewer_gradients() -> None:
    """Torch keeps compiled graphs on disk, also those of an earlier version."""
    q, k, v = inputs(grad=False)
    o = Options(sinks=torch.randn(4))
    out, lse, _ = torch.ops.rocflash.forward(q, k, v, *o, False)
    tensors = (torch.randn_like(out), q, k, v, out, lse)
    found = torch.ops.rocflash.backward(*tensors, *o, [True] * 4)
    expected = torch.ops.rocflash.backward(*tensors, *o, [True] * 4 + [False] * 3)
    assert len(found) == 7 and all(map(torch.equal, found, expected))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.ops.rocflash.backward(*tensors, *o, [True] * 4)
    assert [x.shape for x in fake] == [x.shape for x in found]
    with pytest.raises(ValueError, match="needed has 8 entries; it must have 7"):
        torch.ops.rocflash.backward(*tensors, *o, [True] * 8)


def test_opcheck_in_context() -> None:
    """The pair that asks use_backend's context when it runs."""
    q, k, v = inputs()
    o = Options(sinks=torch.randn(4), backend=-1)
    torch.library.opcheck(torch.ops.rocflash.forward_in_context.default, (q, k, v, *o, False))
    q, k, v = inputs(grad=False)
    with rocflash.use_backend("reference"):
        out, lse, _, chosen = torch.ops.rocflash.forward_in_context(q, k, v, *o, False)
    assert chosen.tolist() == [2]
    arguments = (torch.randn_like(out), q, k, v, out, lse, *o, [True] * 4 + [False] * 2, chosen)
    torch.library.opcheck(torch.ops.rocflash.backward_in_context.default, arguments)


def test_opcheck_upstream_names() -> None:
    q, k, v = inputs(grad=False)
    ops = torch.ops.flash_attn
    arguments = (q, k, v, 0.0, 0.2, True, -1, -1, 0.0, None, False)
    torch.library.opcheck(ops._flash_attn_forward.default, arguments)
    out, lse, _, rng = ops._flash_attn_forward(*arguments)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    torch.library.opcheck(
        ops._flash_attn_backward.default,
        (out, q, k, v, out, lse, *grads, 0.0, 0.2, True, -1, -1, 0.0, None, False, rng),
    )
    cu = torch.tensor([0, 19, 38]).int()
    q, k, v = (torch.randn(38, 4, 32) for _ in range(3))
    arguments = (q, k, v, cu, cu, 19, 19, 0.0, 0.2, True)
    torch.library.opcheck(ops._flash_attn_varlen_forward.default, arguments)
    out, lse, _, rng = ops._flash_attn_varlen_forward(*arguments)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    torch.library.opcheck(
        ops._flash_attn_varlen_backward.default,
        (
            out,
            q,
            k,
            v,
            out,
            lse,
            *grads,
            cu,
            cu,
            19,
            19,
            0.0,
            0.2,
            True,
            -1,
            -1,
            0.0,
            None,
            False,
            rng,
        ),
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str) -> None:
    """Whole graphs, forward and backward, dropout included."""

    def block(q, k, v):
        return flash_attn_func(q * 2, k, v, causal=True, window_size=(9, 0)).square()

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    tensors = inputs()
    found, expected = compiled(*tensors), block(*tensors)
    torch.testing.assert_close(found, expected)
    dout = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, tensors, dout), torch.autograd.grad(expected, tensors, dout)
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_compile_dropout_and_shapes() -> None:
    compiled = torch.compile(
        lambda q, k, v: rocflash.attention(q, k, v, dropout_p=0.3),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    for length in (9, 17):
        tensors = [torch.randn(1, length, 2, 16, requires_grad=True) for _ in range(3)]
        torch.manual_seed(3)
        first = compiled(*tensors)
        second = compiled(*tensors)
        torch.manual_seed(3)
        again = compiled(*tensors)
        assert torch.equal(first, again) and not torch.equal(first, second)
        first.sum().backward()


def test_functional_gradients() -> None:
    q, k, v = inputs(grad=False)

    def loss(f: Callable) -> Callable:
        return lambda q, k, v: f(q, k, v).sin().sum()

    found = torch.func.grad(loss(rocflash.attention), argnums=(0, 1, 2))(q, k, v)
    expected = torch.func.grad(loss(lambda *x: attention(*x)[0]), argnums=(0, 1, 2))(q, k, v)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_second_derivative_is_refused() -> None:
    q, k, v = inputs()
    (dq,) = torch.autograd.grad(rocflash.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(rocflash.Unsupported, match="gradients of attention's gradients"):
        torch.autograd.grad(dq.sum(), q)


def test_numeric_gradients() -> None:
    """gradcheck in f64, which the reference backend takes; sinks too."""
    q, k, v = (torch.randn(1, n, 2, 4, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5))
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def run(q, k, v, sinks):
        return rocflash.attention(
            q, k, v, sinks=sinks, causal=True, softcap=3.0, backend="reference"
        )

    assert torch.autograd.gradcheck(run, (q, k, v, sinks), atol=1e-3, rtol=1e-3)


def test_only_needed_gradients() -> None:
    q, k, v = inputs()
    k.requires_grad_(False)
    rocflash.attention(q, k, v).sum().backward()
    assert q.grad is not None and k.grad is None and v.grad is not None


def test_autocast() -> None:
    q, k, v = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = rocflash.attention(q, k, v)
        same = flash_attn_func(q, k, v)
    assert out.dtype == same.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_repeats_dropout(reentrant: bool) -> None:
    q, k, v = inputs()
    torch.manual_seed(1)
    expected = torch.autograd.grad(rocflash.attention(q, k, v, dropout_p=0.4).sum(), v)[0]
    torch.manual_seed(1)
    out = checkpoint(
        lambda *x: rocflash.attention(*x, dropout_p=0.4), q, k, v, use_reentrant=reentrant
    )
    out.sum().backward()
    assert torch.equal(v.grad, expected)


def test_inference_mode() -> None:
    q, k, v = inputs()
    with torch.inference_mode():
        out = rocflash.attention(q, k, v)
    assert out.is_inference() and not out.requires_grad


def test_views_of_one_projection() -> None:
    """q, k and v cut from one tensor, without copies, give the gradient of that tensor."""
    x = torch.randn(2, 30, 3 * 4 * 32, requires_grad=True)
    q, k, v = x.unflatten(-1, (3, 4, 32)).unbind(2)
    out = rocflash.attention(q, k, v, causal=True)
    expected, _ = attention(q, k, v, causal=True)
    dout = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, x, dout)[0],
        torch.autograd.grad(expected, x, dout)[0],
        rtol=1e-4,
        atol=1e-5,
    )


def test_dropout_follows_the_generator() -> None:
    q, k, v = inputs(grad=False)
    torch.manual_seed(7)
    first, second = (rocflash.attention(q, k, v, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(7)
    assert torch.equal(first, rocflash.attention(q, k, v, dropout_p=0.5))
    assert not torch.equal(first, second)
    own = [torch.Generator().manual_seed(n) for n in (1, 1, 2)]
    a, b, c = (rocflash.attention(q, k, v, dropout_p=0.5, generator=g) for g in own)
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_rng_state_replays_in_backward() -> None:
    """The private functions: what forward returns makes backward drop the same weights."""
    from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward

    q, k, v = inputs(grad=False)
    scale = 32**-0.5
    out, lse, s_dmask, rng = _flash_attn_forward(
        q, k, v, 0.3, scale, False, -1, -1, 0.0, None, True
    )
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected, _ = attention(*leaves, keep=s_dmask >= 0, dropout_p=0.3)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    dout = torch.randn_like(out)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    _flash_attn_backward(
        dout, q, k, v, out, lse, *grads, 0.3, scale, False, -1, -1, 0.0, None, False, rng
    )
    for a, b in zip(grads, torch.autograd.grad(expected, leaves, dout)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_many_threads_at_once() -> None:
    """Calls from several Python threads do not share a frame or a workspace."""
    from concurrent.futures import ThreadPoolExecutor

    tensors = [inputs(grad=False) for _ in range(8)]
    expected = [rocflash.attention(*x) for x in tensors]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            found = list(pool.map(lambda x: rocflash.attention(*x), tensors))
            assert all(torch.equal(a, b) for a, b in zip(found, expected))


def _best_microseconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(400):
        begin = time.perf_counter()
        for _ in range(50):
            call()
        best = min(best, (time.perf_counter() - begin) / 50)
    return best * 1e6


@pytest.mark.parametrize(("grad", "most"), [(False, 15), (True, 30)])
def test_call_overhead(grad: bool, most: float) -> None:
    """A tiny problem costs only some microseconds more than torch's own attention."""
    q = torch.randn(1, 1, 1, 16, requires_grad=grad)
    t = q.detach().transpose(1, 2).requires_grad_(grad)
    theirs = _best_microseconds(lambda: F.scaled_dot_product_attention(t, t, t))
    ours = _best_microseconds(lambda: rocflash.attention(q, q, q))
    assert ours - theirs <= most, f"ours {ours:.1f} us, torch {theirs:.1f} us"


def test_gradients_on_a_gpu_are_queried_before_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tensors that only pretend to be on one: without gradients there is no query, with them
    forward does not run.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from rocflash._torch import calls

    def refused(*_: Any) -> None:
        raise rocflash.Unsupported("q has no gradients there")

    monkeypatch.setattr(calls, "_query_gradients", refused)
    with FakeTensorMode():
        q = torch.empty(1, 5, 2, 64, dtype=torch.float16, device="cuda")
        assert rocflash.attention(q, q, q, return_lse=True)[1].shape == (1, 2, 5)
        with pytest.raises(rocflash.Unsupported, match="no gradients there"):
            rocflash.attention(q.requires_grad_(), q, q)
        with torch.no_grad():
            assert rocflash.attention(q, q, q).shape == q.shape
