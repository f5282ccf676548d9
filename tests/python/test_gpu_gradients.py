"""Gradients on a GPU through every interface, by the project's rule: at most three times the error
of baseline attention in the same dtype; and training steps that are compiled, checkpointed and
captured.

Needs a GPU that torch can use (CUDA or ROCm); skipped without one. ROCFLASH_TEST_DEVICE=cpu runs
all but streams and graphs on the CPU, which shows that the tests themselves are right.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from child import succeeds
from torch import Tensor

import flash_attn_interface as fa3
import rocflash
from flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from reference import attention, check, heads_of, name_of, random_slopes, sample

DEVICE = os.environ.get("ROCFLASH_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch has no GPU here"
)
needs_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="needs streams")

CASES = sample(
    30,
    29,
    dtype=[torch.float16, torch.bfloat16],
    kind=["mha", "gqa", "mqa"],
    d=[32, 40, 59, 64, 96, 128, 192, 256],
    lengths=[(1, 239), (113, 203), (128, 217), (127, 127), (256, 512), (512, 256)],
    causal=[False, True],
    local=[False, True],
    alibi=[False, True],
    softcap=[0.0, 30.0],
    dropout=[0.0, 0.17],
    deterministic=[False, True],
)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> list[Tensor]:
    """Leaves on the CPU, where the expected gradients are computed."""
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def there(*xs: Tensor) -> list[Tensor]:
    """Leaves with the same values on the device."""
    return [x.detach().to(DEVICE).requires_grad_(x.requires_grad) for x in xs]


def hold(names: str, found: Any, exact: Any, baseline: Any) -> None:
    for name, x, *both in zip(names.split(), found, exact, baseline):
        check(name, x.cpu(), *both, 3, 1e-5)


def expected(inputs: list[Tensor], dout: Tensor, **options: Any) -> list[Any]:
    """Exact and baseline gradients of inputs, the first three of which are q, k and v."""
    return [
        torch.autograd.grad(attention(*inputs[:3], exact=exact, **options)[0], inputs, dout)
        for exact in (True, False)
    ]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_flash_attn_func(case: dict) -> None:
    heads, heads_k = heads_of(case["kind"])
    (sq, sk), d, p = case["lengths"], case["d"], case["dropout"]
    inputs = tensors(
        (2, sq, heads, d), (2, sk, heads_k, d), (2, sk, heads_k, d), dtype=case["dtype"]
    )
    window = tuple(torch.randint(0, sk, (2,)).tolist()) if case["local"] else (-1, -1)
    slopes = random_slopes(2, heads) if case["alibi"] else None
    on_device = there(*inputs)
    out, _, s_dmask = flash_attn_func(
        *on_device,
        p,
        causal=case["causal"],
        window_size=window,
        softcap=case["softcap"],
        alibi_slopes=None if slopes is None else slopes.to(DEVICE),
        deterministic=case["deterministic"],
        return_attn_probs=True,
    )
    dout = torch.randn(2, sq, heads, d).to(case["dtype"])
    found = torch.autograd.grad(out, on_device, dout.to(DEVICE))
    options = {
        "causal": case["causal"],
        "window": window,
        "softcap": case["softcap"],
        "slopes": slopes,
        "keep": (s_dmask >= 0).cpu() if p else None,
        "dropout_p": p,
    }
    hold("dq dk dv", found, *expected(inputs, dout, **options))


@pytest.mark.parametrize("function", [flash_attn_func, fa3.flash_attn_func], ids=["FA2", "FA3"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_either_interface(function: Callable, deterministic: bool) -> None:
    inputs = tensors((2, 140, 4, 64), (2, 190, 2, 64), (2, 190, 2, 64), dtype=torch.bfloat16)
    on_device = there(*inputs)
    dout = torch.randn(2, 140, 4, 64).to(torch.bfloat16)
    runs = []
    for _ in range(3):
        out = function(*on_device, causal=True, deterministic=deterministic)
        runs.append(torch.autograd.grad(out, on_device, dout.to(DEVICE)))
    hold("dq dk dv", runs[0], *expected(inputs, dout, causal=True))
    if deterministic:
        for other in runs[1:]:
            assert all(map(torch.equal, other, runs[0])), "other bits in a second run"


@pytest.mark.parametrize("d", [64, 128, 160, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_deterministic(d: int, causal: bool) -> None:
    """Many blocks of keys that add to the same queries, and the last tile is not whole."""
    q, k, v = there(
        *tensors((2, 1100, 4, d), (2, 1300, 2, d), (2, 1300, 2, d), dtype=torch.bfloat16)
    )
    out = rocflash.attention(q, k, v, causal=causal, deterministic=True)
    dout = torch.randn_like(out)
    first, *others = (
        torch.autograd.grad(out, (q, k, v), dout, retain_graph=True) for _ in range(6)
    )
    for other in others:
        assert all(map(torch.equal, other, first)), "other bits in another run"


@pytest.mark.parametrize("kind", ["qkv", "kv", "FA3 qkv"])
def test_packed_tensors(kind: str) -> None:
    """One gradient for the packed tensor, of which q, k and v are views."""
    (qkv,) = tensors((2, 150, 3, 4, 64))
    (given,) = there(qkv)
    if kind == "kv":
        out = flash_attn_kvpacked_func(given[:, :, 0], given[:, :, 1:], causal=True)
    elif kind == "qkv":
        out = flash_attn_qkvpacked_func(given, causal=True)
    else:
        out = fa3.flash_attn_qkvpacked_func(given.flatten(2, 3), causal=True, num_heads_q=4)
    dout = torch.randn(2, 150, 4, 64).half()
    (found,) = torch.autograd.grad(out, given, dout.to(DEVICE))
    three = [
        torch.autograd.grad(attention(*qkv.unbind(2), causal=True, exact=exact)[0], qkv, dout)[0]
        for exact in (True, False)
    ]
    check("dqkv", found.cpu(), *three, 3, 1e-5)


@pytest.mark.parametrize("kind", ["FA2", "FA3", "kv", "qkv", "attention"])
def test_gradients_of_all_sequence_lengths(kind: str) -> None:
    lengths = [70, 1, 0, 129]
    cu = torch.tensor([0, 70, 71, 71, 200], dtype=torch.int32)
    shape = (sum(lengths), 4, 64)
    inputs = tensors(shape, shape, shape, dtype=torch.bfloat16)
    on_device = there(*inputs)
    begins = cu.to(DEVICE)
    q, k, v = on_device
    options = {"causal": True, "deterministic": True}
    if kind == "kv":
        kv = torch.stack((k, v), 1)
        out = flash_attn_varlen_kvpacked_func(q, kv, begins, begins, 129, 129, **options)
    elif kind == "qkv":
        qkv = torch.stack((q, k, v), 1)
        out = flash_attn_varlen_qkvpacked_func(qkv, begins, 129, **options)
    elif kind == "attention":
        out = rocflash.attention(q, k, v, cu_seqlens_q=begins, cu_seqlens_k=begins, **options)
    else:
        function = flash_attn_varlen_func if kind == "FA2" else fa3.flash_attn_varlen_func
        out = function(q, k, v, begins, begins, 129, 129, **options)
    dout = torch.randn(shape).to(torch.bfloat16)
    found = torch.autograd.grad(out, on_device, dout.to(DEVICE))
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end > begin:
            part = [x[begin:end].detach()[None].requires_grad_() for x in inputs]
            wanted = expected(part, dout[None, begin:end], causal=True)
            hold("dq dk dv", [x[None, begin:end] for x in found], *wanted)


def test_rows_outside_all_sequences_have_no_gradient() -> None:
    q, k, v = (torch.randn(40, 2, 32, device=DEVICE).half().requires_grad_() for _ in "qkv")
    cu = torch.tensor([5, 17, 30], dtype=torch.int32, device=DEVICE)
    out = flash_attn_varlen_func(q, k, v, cu, cu, 13, 13)
    for x in torch.autograd.grad(out.float().square().sum(), (q, k, v)):
        assert x[:5].eq(0).all() and x[30:].eq(0).all() and x[5:30].ne(0).any()


def test_views_and_other_strides() -> None:
    """Inputs as (b, h, s, d) in memory, and a gradient of out that is broadcast."""
    inputs = tensors((2, 4, 90, 64), (2, 4, 90, 64), (2, 4, 90, 64))
    on_device = there(*inputs)
    out = rocflash.attention(*(x.transpose(1, 2) for x in on_device), causal=True)
    found = torch.autograd.grad(out.sum(), on_device)
    for exact in (True, False):
        out = attention(*(x.transpose(1, 2) for x in inputs), causal=True, exact=exact)[0]
        wanted = torch.autograd.grad(out.sum(), inputs)
        if exact:
            first = wanted
    hold("dq dk dv", found, first, wanted)


@pytest.mark.parametrize("which", range(3))
def test_one_requested_gradient(which: int) -> None:
    inputs = tensors((1, 70, 2, 64), (1, 80, 2, 64), (1, 80, 2, 64))
    dout = torch.randn(1, 70, 2, 64).half()
    wanted = expected(inputs, dout)
    given = [x.detach().to(DEVICE) for x in inputs]
    given[which].requires_grad_()
    found = torch.autograd.grad(flash_attn_func(*given), given[which], dout.to(DEVICE))
    hold("one", found, *([three[which]] for three in wanted))


def test_sinks() -> None:
    q, k, v, sinks = tensors((2, 130, 4, 64), (2, 130, 4, 64), (2, 130, 4, 64), (4,))
    on_device = there(q, k, v, sinks)
    out = flash_attn_func(*on_device[:3], causal=True, s_aux=on_device[3])
    dout = torch.randn(2, 130, 4, 64).half()
    found = torch.autograd.grad(out, on_device, dout.to(DEVICE))
    three = [
        torch.autograd.grad(
            attention(q, k, v, causal=True, sinks=sinks, exact=exact)[0], (q, k, v, sinks), dout
        )
        for exact in (True, False)
    ]
    hold("dq dk dv dsinks", found, *three)


@pytest.mark.parametrize(
    "shape", [(2, 4, 37, 53), (1, 4, 37, 53), (2, 1, 1, 53), (1, 1, 37, 1)], ids=str
)
def test_bias_and_slopes(shape: tuple[int, ...]) -> None:
    """Against this library on the CPU, which tests/python/test_option_gradients.py holds to
    torch.
    """
    inputs = tensors((2, 37, 4, 64), (2, 53, 2, 64), (2, 53, 2, 64))
    bias, slopes = torch.randn(shape).half().requires_grad_(), torch.rand(4).requires_grad_()
    dout = torch.randn(2, 37, 4, 64).half()

    def gradients(inputs: list[Tensor], dout: Tensor, **options: Any) -> Any:
        out = rocflash.attention(*inputs[:3], bias=inputs[3], alibi_slopes=inputs[4], **options)
        return torch.autograd.grad(out, inputs, dout)

    everything = [*inputs, bias, slopes]
    found = gradients(there(*everything), dout.to(DEVICE))
    exact = gradients(everything, dout, backend="reference")
    baseline = gradients(everything, dout, backend="naive")
    hold("dq dk dv dbias dslopes", found, exact, baseline)


def test_compiled_in_one_graph() -> None:
    q, k, v = there(*tensors((2, 64, 4, 64), (2, 64, 4, 64), (2, 64, 4, 64)))

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attn_func(q * 2, k, v, causal=True, deterministic=True) + 1

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for x, y in zip(
        torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v)),
        torch.autograd.grad(layer(q, k, v).sum(), (q, k, v)),
    ):
        assert torch.equal(x, y)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool) -> None:
    """Forward runs again in backward, and dropout draws the same pattern."""
    from torch.utils.checkpoint import checkpoint

    q, k, v = there(*tensors((2, 64, 4, 64), (2, 64, 4, 64), (2, 64, 4, 64)))

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attn_func(q, k, v, 0.2, causal=True, deterministic=True)

    torch.manual_seed(7)
    expected = torch.autograd.grad(layer(q, k, v).float().square().sum(), (q, k, v))
    torch.manual_seed(7)
    out = checkpoint(layer, q, k, v, use_reentrant=reentrant)
    out.float().square().sum().backward()
    for x, y in zip((q, k, v), expected):
        assert torch.equal(x.grad, y)


def test_autocast() -> None:
    q, k, v = there(*tensors(*[(1, 50, 2, 64)] * 3, dtype=torch.float32))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        out = rocflash.attention(q, k, v, causal=True)
    assert out.dtype is torch.bfloat16
    for x in torch.autograd.grad(out.float().sum(), (q, k, v)):
        assert x.dtype is torch.float32 and x.isfinite().all()


@needs_gpu
def test_backward_on_a_second_stream() -> None:
    """Backward runs on forward's stream, and waits for what was put there before it."""
    inputs = there(*tensors(*[(2, 256, 4, 64)] * 3))
    dout = torch.randn(2, 256, 4, 64, device=DEVICE).half()
    out = flash_attn_func(*inputs, deterministic=True)
    expected = torch.autograd.grad(out, inputs, dout)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = torch.zeros_like(dout)
        out = flash_attn_func(*inputs, deterministic=True)
        torch.cuda._sleep(20_000_000)
        late.copy_(dout)
        found = torch.autograd.grad(out, inputs, late)
    torch.cuda.current_stream().wait_stream(stream)
    assert all(map(torch.equal, found, expected))


@needs_gpu
@pytest.mark.parametrize("first", [False, True], ids=["warm", "first call"])
def test_a_captured_training_step(first: bool) -> None:
    """Forward, backward and the optimizer's step as one graph, replayed with other data, against
    the same steps without a graph.
    """
    code = f"""
import torch
from flash_attn import flash_attn_func

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(128, 384), torch.nn.Linear(128, 128)
    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 64).unbind(2)
        return self.out(flash_attn_func(q, k, v, causal=True, deterministic=True).flatten(2))

def step(model, optimizer, x):
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss

def fresh():
    torch.manual_seed(0)
    model = Layer().to("cuda", torch.bfloat16)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

batches = [torch.randn(2, 96, 128, device="cuda", dtype=torch.bfloat16) for _ in range(5)]
# cuBLAS wants its own workspace before a capture, which attention does not.
x = torch.randn(8, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
torch.mm(x, x).sum().backward()
if not {first}:
    step(*fresh(), batches[0])
captured, optimizer = fresh()
static = batches[0].clone()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step(captured, optimizer, static)
losses = []
for x in batches:
    static.copy_(x)
    graph.replay()
    losses.append(loss.item())
eager, optimizer = fresh()
expected = [step(eager, optimizer, x).item() for x in batches]
assert losses == expected, (losses, expected)
for x, y in zip(captured.parameters(), eager.parameters()):
    assert torch.equal(x, y)
"""
    succeeds(code)


@needs_gpu
def test_unsupported_gradients_are_rejected_before_forward() -> None:
    q, k, v = (torch.randn(1, 8, 2, 64, device=DEVICE, dtype=torch.float64) for _ in "qkv")
    with pytest.raises(rocflash.Unsupported, match="q has dtype f64"):
        flash_attn_func(q.requires_grad_(), k, v)
