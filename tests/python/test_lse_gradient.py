"""lse is differentiable, like out: on every path into the library, against torch in f64."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Optional

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rocflash
from flash_attn import flash_attn_func
from rocflash.errors import InvalidArgument

B, SQ, SK, H, HK, D, DV = 2, 5, 9, 4, 2, 8, 6
NAMES = ("q", "k", "v", "sinks", "bias")


def inputs(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = ((B, SQ, H, D), (B, SK, HK, D), (B, SK, HK, DV), (H,), (1, H, SQ, SK))
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
        for name, shape in zip(NAMES, shapes)
    }


def naive(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor] = None, bias: Optional[Tensor] = None
) -> tuple[Tensor, Tensor]:
    """(out, lse) with a causal mask, which leaves no row without a key."""
    k, v = (x.repeat_interleave(H // HK, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * D**-0.5
    if bias is not None:
        scores = scores + bias
    mask = torch.ones(SQ, SK, dtype=torch.bool).tril(SK - SQ)
    scores = scores.masked_fill(~mask, -torch.inf)
    logits = scores
    if sinks is not None:
        logits = torch.cat((scores, sinks[None, :, None, None].expand(B, H, SQ, 1)), -1)
    lse = logits.logsumexp(-1)
    return torch.einsum("bhij,bjhd->bihd", (scores - lse[..., None]).exp(), v), lse


def loss(out: Tensor, lse: Tensor) -> Tensor:
    return (out.double() * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum() + (
        lse.double() * torch.linspace(2, -1, lse.numel()).view(lse.shape)
    ).sum()


def gradients(function: Any, given: dict[str, Tensor], of_loss: Any = loss) -> dict[str, Tensor]:
    found = torch.autograd.grad(of_loss(*function(**given)), list(given.values()))
    return dict(zip(given, found))


class Mode(TorchDispatchMode):
    """Makes calls go through the dispatcher, as profilers of operators do."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


def attention(**given: Any) -> Any:
    return rocflash.attention(**given, causal=True, return_lse=True)


def expected(given: dict[str, Tensor], of_loss: Any = loss) -> dict[str, Tensor]:
    exact = {name: x.detach().double().requires_grad_() for name, x in given.items()}
    return gradients(naive, exact, of_loss)


def check(found: dict[str, Tensor], exact: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    for name, x in exact.items():
        torch.testing.assert_close(found[name].double(), x, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("names", [NAMES[:3], NAMES], ids=["qkv", "options"])
@pytest.mark.parametrize("path", ["eager", "operator", "compiled", "transform"])
def test_gradients(path: str, names: tuple[str, ...]) -> None:
    given = {name: x for name, x in inputs().items() if name in names}
    function: Any = attention
    if path == "compiled":
        function = torch.compile(attention, backend="aot_eager", fullgraph=True)
    if path == "transform":
        at = tuple(range(len(given)))
        values = [x.detach() for x in given.values()]
        found = dict(
            zip(
                given,
                torch.func.grad(lambda *x: loss(*attention(**dict(zip(given, x)))), at)(*values),
            )
        )
    else:
        with Mode() if path == "operator" else nullcontext():
            found = gradients(function, given)
    check(found, expected(given))


def test_lse_alone() -> None:
    """out without a gradient, and a row statistic that is reused."""
    given = {name: inputs()[name] for name in NAMES[:3]}

    def of_lse(out: Tensor, lse: Tensor) -> Tensor:
        return (lse.double() ** 2).sum()

    found = torch.autograd.grad(of_lse(*attention(**given)), [given["q"], given["k"]])
    exact = {name: x.detach().double().requires_grad_() for name, x in given.items()}
    wanted = torch.autograd.grad(of_lse(*naive(**exact)), [exact["q"], exact["k"]])
    for x, y in zip(found, wanted):
        torch.testing.assert_close(x.double(), y, atol=1e-5, rtol=1e-5)


def test_reference_backend_in_f64() -> None:
    given = inputs(torch.float64)

    def function(**given: Any) -> Any:
        return rocflash.attention(**given, causal=True, return_lse=True, backend="reference")

    # lse itself is f32, its gradient too.
    check(gradients(function, given), expected(given), 1e-6)


def test_forward_mode() -> None:
    given = [x.detach() for x in inputs().values()]
    tangents = [torch.randn_like(x) for x in given]
    found = torch.func.jvp(
        lambda *x: attention(**dict(zip(NAMES, x))), tuple(given), tuple(tangents)
    )
    exact = torch.func.jvp(
        naive, tuple(x.double() for x in given), tuple(x.double() for x in tangents)
    )
    for x, y in zip(found[1], exact[1]):
        torch.testing.assert_close(x.double(), y, atol=1e-5, rtol=1e-5)


def test_fully_masked_rows_ignore_their_gradient() -> None:
    q, k, v = (inputs()[name].detach() for name in NAMES[:3])
    mask = torch.ones(B, 1, SQ, 1, dtype=torch.bool)
    mask[1, 0, 2] = False
    q.requires_grad_()
    out, lse = rocflash.attention(q, k, v, mask=mask, return_lse=True)
    assert torch.isinf(lse[1, :, 2]).all() and torch.isfinite(lse).sum() == lse.numel() - H
    dlse = torch.ones_like(lse)
    dlse[1, :, 2] = torch.nan
    (dq,) = torch.autograd.grad([out, lse], q, [torch.zeros_like(out), dlse])
    assert torch.isfinite(dq).all() and not dq[1, 2].any() and dq[1, 1].any()


def test_flash_attn_under_a_compiler() -> None:
    """The operators by upstream's names take no gradient of lse; the call has it nevertheless."""
    given = {name: inputs(torch.bfloat16)[name] for name in NAMES[:3]}
    given["v"] = torch.randn(B, SK, HK, D, dtype=torch.bfloat16, requires_grad=True)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flash_attn_func(q, k, v, causal=True, return_attn_probs=True)[:2]

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    eager = gradients(function, given)
    check(gradients(compiled, given), {name: x.double() for name, x in eager.items()}, 1e-2)
    check(eager, expected(given), 5e-2)


def test_the_operator_validates_dlse() -> None:
    q, k, v = (inputs()[name].detach() for name in NAMES[:3])
    out, lse = rocflash.attention(q, k, v, return_lse=True)
    from rocflash._torch import calls
    from rocflash.dropin import options_of

    dout, options = torch.ones_like(out), options_of()
    with pytest.raises(
        InvalidArgument, match=r"dlse has shape \(2, 4, 4\); it must be \(b, h, sq\)"
    ):
        calls.backward(dout, q, k, v, out, lse, options, (True,), dlse=lse[..., 1:])
    with pytest.raises(InvalidArgument, match="dlse has dtype f16; it must be f32"):
        calls.backward(dout, q, k, v, out, lse, options, (True,), dlse=lse.half())
