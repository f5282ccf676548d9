"""rocflash.sdpa: torch's scaled_dot_product_attention with this library, compared with torch in
double precision.
"""

from __future__ import annotations

import random
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

import rocflash
from rocflash import sdpa

KEPT = [F.scaled_dot_product_attention]  # as a global of its own it would be replaced as any other
LENGTHS = (1, 5, 16, 33, 70)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    sdpa.disable()
    assert F.scaled_dot_product_attention is KEPT[0]


def torchs(*arguments: Any, **named: Any) -> Any:
    return KEPT[0](*arguments, **named)


def drawn(seed: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Tensors and arguments of one case, float masks last among the tensors."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    dtype = r.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    lead = r.choice([(), (3,), (2, 4), (2, 4), (2, 4), (2, 4), (2, 1, 4), (2, 3, 4)])
    rows, keys = r.choice(LENGTHS), r.choice(LENGTHS)
    d, dv = r.choice([(8, 8), (32, 32), (64, 64), (40, 24)])
    named: dict[str, Any] = {}
    lead_k = lead
    if len(lead) > 1 and r.random() < 0.4:
        named["enable_gqa"] = True
        lead_k = (*lead[:-1], r.choice([1, 2]))
    elif len(lead) > 1 and r.random() < 0.4:  # torch broadcasts
        lead_k = r.choice([lead[1:], (1, *lead[1:]), (*lead[:-1], 1)])
    tensors = [
        torch.randn(*lead, rows, d),
        torch.randn(*lead_k, keys, d),
        torch.randn(*lead_k, keys, dv),
    ]
    if r.random() < 0.3:
        tensors = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in tensors]
    tensors = [x.to(dtype) for x in tensors]
    kind = r.choice(["none", "causal", "bool", "float", "float"])
    if kind == "causal":
        named["is_causal"] = True
    if kind in ("bool", "float"):
        shape = [
            *(r.choice([1, n]) for n in lead),
            r.choice([1, rows, rows]),
            r.choice([1, keys, keys]),
        ]
        shape = shape[r.randrange(len(shape) - 1) :]
        visible = torch.rand(shape) > 0.3
        if kind == "bool":
            named["attn_mask"] = visible
        else:
            bias = torch.randn(shape).masked_fill(~visible, -torch.inf)
            tensors.append(bias.to(r.choice([dtype, torch.float32])))
    if r.random() < 0.3:
        named["scale"] = 0.3
    return tensors, named


def results(
    function: Any, tensors: list[torch.Tensor], named: dict[str, Any], dout: Any, dtype: Any
) -> list[torch.Tensor]:
    inputs = [x.detach().to(dtype or x.dtype).requires_grad_() for x in tensors]
    if len(inputs) == 4:
        named = {**named, "attn_mask": inputs[3]}
    out = function(*inputs[:3], **named)
    return [x.double() for x in (out, *torch.autograd.grad(out, inputs, dout.to(out.dtype)))]


@pytest.mark.parametrize("seed", range(48))
@pytest.mark.parametrize("device", DEVICES)
def test_like_torch(device: str, seed: int) -> None:
    tensors, named = drawn(seed)
    tensors = [x.to(device) for x in tensors]
    if "attn_mask" in named:
        named["attn_mask"] = named["attn_mask"].to(device)
    sdpa.enable()
    assert F.scaled_dot_product_attention is not KEPT[0]
    dout = torch.randn(
        torchs(*[x.float() for x in tensors[:3]], enable_gqa="enable_gqa" in named).shape
    )
    dout = dout.to(tensors[0])
    found = results(F.scaled_dot_product_attention, tensors, named, dout, None)
    assert sdpa.last() == ("rocflash", "")
    with sdpa_kernel(SDPBackend.MATH):
        exact = results(torchs, tensors, named, dout, torch.float64)
    with rocflash.use_backend("naive"):  # the baseline of all tests
        baseline = results(
            sdpa.scaled_dot_product_attention,
            [x.cpu() for x in tensors],
            {n: x.cpu() if n == "attn_mask" else x for n, x in named.items()},
            dout.cpu(),
            None,
        )
    for name, x, y, z in zip(("out", "dq", "dk", "dv", "dmask"), found, exact, baseline):
        assert x.shape == y.shape, name
        times = 2 if name == "out" else 3
        error = (x - y).abs().max().item()
        allowed = (
            times * (z.to(y.device) - y).abs().max().item() + 4e-6
        )  # errors below two f32 roundings do not count
        assert error <= allowed, f"{name}: {error} > {allowed}"


def test_dropout_equals_the_librarys() -> None:
    q, k, v = (torch.randn(2, 3, 40, 16) for _ in range(3))
    transposed = [x.transpose(1, 2) for x in (q, k, v)]
    with sdpa.enable():
        torch.manual_seed(3)
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)
        again = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)
    torch.manual_seed(3)
    expected = rocflash.attention(*transposed, dropout_p=0.3, causal=True).transpose(1, 2)
    assert torch.equal(found, expected) and not torch.equal(found, again)


def test_autocast() -> None:
    q, k, v = (torch.randn(2, 3, 9, 16) for _ in range(3))
    bias = torch.randn(9, 9, requires_grad=True)
    with sdpa.enable(), torch.autocast("cpu", torch.bfloat16):
        out = F.scaled_dot_product_attention(q, k.bfloat16(), v, bias)
        out.sum().backward()
    assert out.dtype is torch.bfloat16 and bias.grad is not None and sdpa.last() == ("rocflash", "")


def test_a_fully_masked_row_is_zero() -> None:
    q = torch.randn(1, 1, 4, 8)
    mask = torch.tensor([True, False, True, False])[:, None].expand(4, 4)
    with sdpa.enable():
        out = F.scaled_dot_product_attention(q, q, q, mask)
    assert (out[0, 0, 1::2] == 0).all() and torch.allclose(out, torchs(q, q, q, mask), atol=1e-5)


DECLINED = {
    "double": lambda q: now(q.double(), q.double(), q.double()),
    "nested": lambda q: now(
        *[torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged).transpose(1, 2)] * 3
    ),
    "meta": lambda q: now(*[q.to("meta")] * 3),
    "vmap": lambda q: torch.func.vmap(now)(q, q, q),
    "mask and causal": lambda q: now(q, q, q, torch.ones(4, 4, dtype=torch.bool), is_causal=True),
    "switched off": lambda q: in_math(q),
    "a mode": lambda q: under_a_mode(q),
    "dropout of everything": lambda q: now(q, q, q, dropout_p=1.0),
    "no head": lambda q: now(q[:, :0], q[:, :0], q[:, :0]),
    "a head too large": lambda q: now(*[q.repeat(1, 1, 1, 40)] * 3),
}


def now(*arguments: Any, **named: Any) -> Any:
    return F.scaled_dot_product_attention(*arguments, **named)


def in_math(q: torch.Tensor) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return now(q, q, q)


def under_a_mode(q: torch.Tensor) -> Any:
    """As context parallelism finds the calls that it has to split."""
    visible = []

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            visible.append(function)
            return function(*arguments, **(named or {}))

    with Mode():
        out = now(q, q, q)
    assert KEPT[0] in visible
    return out


@pytest.mark.parametrize("call", DECLINED.values(), ids=DECLINED)
def test_fallback_to_torch_has_a_reason(call: Any) -> None:
    q = torch.randn(2, 3, 4, 16)
    sdpa.enable()
    with pytest.warns(sdpa.FallbackWarning, match="torch serves"):
        call(q)
    served = sdpa.last()
    assert served is not None and served.by == "torch" and served.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(q)  # warned once
    assert sdpa.counts()[served] >= 2
    sdpa.disable()
    with sdpa.enable(strict=True), pytest.raises(rocflash.Unsupported, match="strict=True"):
        call(q)


@pytest.mark.parametrize("sq, sk", [(9, 9), (5, 9), (9, 5)])
def test_torchs_causal_biases(sq: int, sk: int) -> None:
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q, k, v = torch.randn(2, 3, sq, 16), torch.randn(2, 3, sk, 16), torch.randn(2, 3, sk, 16)
    for bias in (causal_lower_right(sq, sk), causal_upper_left(sq, sk)):
        wanted = torchs(q, k, v, attn_mask=bias._materialize())
        with sdpa.enable(strict=True):
            assert (
                F.scaled_dot_product_attention(q, k, v, attn_mask=bias) - wanted
            ).abs().max() < 1e-5


def test_numbers_of_other_libraries() -> None:
    """torch takes NumPy's numbers and its own; what is not finite is torch's to answer."""
    q = torch.randn(1, 2, 5, 8)
    wanted = torchs(q, q, q, scale=0.5)
    with sdpa.enable(strict=True):
        for half in (np.float32(0.5), torch.tensor(0.5)):
            found = F.scaled_dot_product_attention(q, q, q, dropout_p=torch.tensor(0.0), scale=half)
            assert (found - wanted).abs().max() < 1e-5
    with sdpa.enable(), pytest.warns(sdpa.FallbackWarning, match="scale is inf"):
        F.scaled_dot_product_attention(q, q, q, scale=float("inf"))


def test_shapes_without_rows_equal_torchs() -> None:
    for sq, sk in ((0, 4), (4, 0)):
        q, k = torch.randn(1, 2, sq, 8), torch.randn(3, 2, sk, 8)
        with sdpa.enable(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert F.scaled_dot_product_attention(q, k, k).shape == torchs(q, k, k).shape
            assert F.scaled_dot_product_attention(q.expand(3, -1, -1, -1), k, k).shape == (
                3,
                2,
                sq,
                8,
            )


def test_invalid_calls_raise_torchs_errors() -> None:
    q = torch.randn(2, 3, 4, 16)
    bad: list[Any] = [
        ((q, q, q, torch.ones(4)), {}),
        ((q, q[:, :2], q[:, :2]), {}),
        ((q, q, q, torch.ones(3, 3, dtype=torch.bool)), {}),
        ((q, q, q, torch.ones(4, 4, dtype=torch.int32)), {}),
        ((q, q.double(), q), {}),
        ((q[..., :8], q, q), {}),
        ((q, q, q), {"enable_gqa": True, "attn_mask": torch.ones(5, 4)}),
        ((q, q[:, :2], q[:, :2]), {"enable_gqa": True}),
        ((q, None, q), {}),
        ((q, q, q), {"color": 1}),
    ]
    for arguments, named in bad:
        raised = []
        for function in (torchs, sdpa._installed):
            with sdpa.enable(), pytest.raises(Exception) as found:
                function(*arguments, **named)
            raised.append(found.type)
        assert raised[0] is raised[1], (arguments[1:], named)


def test_forward_mode_falls_back_to_torch() -> None:
    q = torch.randn(1, 1, 4, 8)
    with (
        sdpa.enable(),
        pytest.raises(NotImplementedError, match="forward AD with _scaled_dot_product"),
    ):
        torch.func.jvp(lambda x: now(x, q, q).sum(), (q,), (q,))


def test_enable_and_disable() -> None:
    q = torch.randn(1, 1, 4, 8)
    user = types.ModuleType("imported_by_name")
    user.attend = KEPT[0]  # type: ignore[attr-defined]
    sys.modules[user.__name__] = user
    try:
        sdpa.enable()
        kept = user.attend
        assert kept is F.scaled_dot_product_attention and sdpa.is_enabled()
        with sdpa.enable(strict=True):
            assert sdpa.is_enabled()
            with pytest.raises(rocflash.Unsupported):
                kept(q.double(), q.double(), q.double())
        assert sdpa.is_enabled()
        with pytest.warns(sdpa.FallbackWarning):
            kept(q.double(), q.double(), q.double())
        sdpa.enable()
        sdpa.disable()
        assert user.attend is KEPT[0] and not sdpa.is_enabled()
        before = sum(sdpa.counts().values())
        assert torch.equal(kept(q, q, q), torchs(q, q, q))  # torch's, since it is off
        assert sum(sdpa.counts().values()) == before
    finally:
        del sys.modules[user.__name__]


def test_wrapped_by_another_package() -> None:
    q = torch.randn(1, 1, 4, 8)
    sdpa.enable()
    inner = F.scaled_dot_product_attention

    def wrapper(*arguments: Any) -> Any:
        return inner(*arguments)

    F.scaled_dot_product_attention = wrapper
    sdpa.disable()
    try:
        assert F.scaled_dot_product_attention is wrapper  # theirs stays, and ends at torch's
        assert torch.equal(wrapper(q, q, q), torchs(q, q, q))
    finally:
        F.scaled_dot_product_attention = KEPT[0]


@pytest.mark.parametrize("shape", [(0, 2, 4, 8), (2, 2, 0, 8), (0, 3, 2, 4, 8)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    q = torch.randn(shape)
    with sdpa.enable(), torch.device("cpu"):
        assert F.scaled_dot_product_attention(q, q, q, is_causal=True).shape == shape
    some = torch.randn(2, 2, 3, 8)
    with sdpa.enable():
        none = F.scaled_dot_product_attention(some, some[:, :, :0], some[:, :, :0])
    assert (none == 0).all() and none.shape == some.shape


def operators(graphs: list[Any]) -> set[str]:
    return {str(n.target) for g in graphs for n in g.graph.nodes if n.op == "call_function"}


def test_compiled() -> None:
    """One graph without breaks, made again when the library is switched on or off; results are
    those of eager calls.
    """
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def model(q: Any, k: Any, v: Any, bias: Any) -> Any:
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.scaled_dot_product_attention(x, k, v, bias, scale=0.2, enable_gqa=True).sum()

    q, k, v = (torch.randn(2, h, 12, 16, requires_grad=True) for h in (4, 2, 2))
    bias = torch.randn(12, 12, requires_grad=True)
    given = (q, k, v, bias)
    compiled = torch.compile(model, backend=keep, fullgraph=True)
    compiled(*given)
    assert not any("rocflash" in name for name in operators(graphs))
    graphs.clear()
    with sdpa.enable():
        out = compiled(*given)
        assert any("rocflash" in name for name in operators(graphs)), operators(graphs)
        assert not any("scaled_dot" in name for name in operators(graphs))
        found = torch.autograd.grad(out, given)
        eager = torch.autograd.grad(model(*given), given)
        for x, y in zip(found, eager):
            torch.testing.assert_close(x, y)
        longer = [torch.randn(2, h, 30, 16) for h in (4, 2, 2)]
        by_aot = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
        torch.testing.assert_close(by_aot(*longer, bias[:1, :1]), model(*longer, bias[:1, :1]))
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(by_aot(*given), model(*given))
    graphs.clear()
    torch.testing.assert_close(compiled(*given), out)
    assert not any("rocflash" in name for name in operators(graphs))


def test_compiled_fallback_warns() -> None:
    q = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    compiled = torch.compile(
        lambda x: F.scaled_dot_product_attention(x, x, x), backend="eager", fullgraph=True
    )
    with sdpa.enable(), pytest.warns(sdpa.FallbackWarning, match="float64"):
        out = compiled(q)
    torch.testing.assert_close(out, torchs(q, q, q))


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripts_use_torchs_operator() -> None:
    with sdpa.enable():
        assert "torch.scaled_dot_product_attention" in torch.jit.script(Scripted()).code


def test_deterministic_and_checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    q = torch.randn(2, 3, 20, 16, requires_grad=True)

    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.2, is_causal=True)

    with sdpa.enable():
        torch.manual_seed(0)
        (baseline,) = torch.autograd.grad(attend(q).sum(), q)
        torch.manual_seed(0)
        (again,) = torch.autograd.grad(checkpoint(attend, q, use_reentrant=False).sum(), q)
    assert torch.equal(baseline, again)
