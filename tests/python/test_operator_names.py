"""Calls of flash_attn's functions are upstream's operators to torch's modes: axolotl's selective
checkpointing keeps what has "flash_attn" in its name, and reads `window_size_left` of its schema.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import rocflash
from flash_attn import (
    _operators,
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
)

CU = torch.tensor([0, 5, 12]).int()


class Recorder(TorchDispatchMode):
    """The names of all operators but torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace not in ("aten", "prim"):
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 12, h, 32, requires_grad=True) for h in (4, 2, 2)]


def packed(x: torch.Tensor) -> torch.Tensor:
    return x[0]


CALLS: dict[str, tuple[Any, str]] = {
    "dense": (lambda q, k, v: flash_attn_func(q, k, v, causal=True, window_size=(4, 0)), ""),
    "scale": (lambda q, k, v: flash_attn_func(q, k, v, softmax_scale=0.3, softcap=2.0), ""),
    "varlen": (
        lambda q, k, v: flash_attn_varlen_func(*map(packed, (q, k, v)), CU, CU, 7, 7, causal=True),
        "varlen_",
    ),
    "probabilities": (lambda q, k, v: flash_attn_func(q, k, v, return_attn_probs=True)[0], ""),
    "packed": (lambda q, k, v: flash_attn_qkvpacked_func(torch.stack([k, k, v], 2)), ""),
    "sinks": (lambda q, k, v: flash_attn_func(q, k, v, s_aux=torch.zeros(4)), "options_"),
    "deterministic": (lambda q, k, v: flash_attn_func(q, k, v, deterministic=True), "options_"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_forward_and_backward(kind: str) -> None:
    call, part = CALLS[kind]
    results = []
    for watched in (False, True):
        torch.manual_seed(1)
        leaves = inputs()
        mode = Recorder()
        if watched:
            with mode:
                call(*leaves).square().sum().backward()
            forward, backward = (
                f"flash_attn._flash_attn_{part}{way}.default" for way in ("forward", "backward")
            )
            assert mode.names == [forward, backward]
        else:
            call(*leaves).square().sum().backward()
        results.append([x.grad for x in leaves if x.grad is not None])
    assert len(results[0]) == len(results[1]) >= 2
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_dropout_is_the_same() -> None:
    """With and without a mode the same seed drops the same weights."""
    q, k, v = (x.detach() for x in inputs())
    found = []
    for mode in (None, Recorder()):
        torch.manual_seed(3)
        if mode is None:
            found.append(flash_attn_func(q, k, v, dropout_p=0.4))
        else:
            with mode:
                found.append(flash_attn_func(q, k, v, dropout_p=0.4))
            assert mode.names == ["flash_attn._flash_attn_forward.default"]
    assert torch.equal(*found)


def test_chosen_backend_is_kept() -> None:
    """Upstream's operators have no argument for it."""
    mode = Recorder()
    q, k, v = inputs()
    with mode, rocflash.use_backend("reference"):
        out = flash_attn_func(q, k, v)
    assert mode.names == ["flash_attn._flash_attn_options_forward.default"]
    assert torch.equal(out, rocflash.attention(q, k, v, backend="reference"))


def test_schema_has_the_arguments_of_policies() -> None:
    schema = torch.ops.flash_attn._flash_attn_forward.default._schema
    assert "window_size_left" in [x.name for x in schema.arguments]


@pytest.mark.parametrize("kept", [True, False])
def test_selective_checkpointing(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the policy keeps is not computed again."""
    calls = []
    operator = _operators.forward_operator
    raw = operator.raw
    monkeypatch.setattr(operator, "raw", lambda *x: calls.append(1) or raw(*x))

    def policy(context, function, *arguments, **named):
        keep = kept and "flash_attn" in str(function)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    def layer(*x: torch.Tensor) -> torch.Tensor:
        return flash_attn_func(*x, causal=True).square()

    q, k, v = inputs()
    contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
    out = checkpoint(layer, q, k, v, use_reentrant=False, context_fn=contexts)
    found = torch.autograd.grad(out.sum(), (q, k, v))
    assert len(calls) == (1 if kept else 2)
    for a, b in zip(found, torch.autograd.grad(layer(q, k, v).sum(), (q, k, v))):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_compiled_graphs_contain_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """By upstream's names, until a use_backend block may choose: that is looked up when the graph
    runs.
    """
    from rocflash._c import choice

    q, k, v = inputs()
    for has_blocks, name in (
        (False, "_flash_attn_forward"),
        (True, "_flash_attn_options_forward_in_context"),
    ):
        monkeypatch.setattr(choice, "_has_blocks", has_blocks)
        graphs = []

        def keep(graph, _, into=graphs):
            into.append(str(graph.graph))
            return graph.forward

        call = torch.compile(
            lambda *x: flash_attn_func(*x, causal=True), backend=keep, fullgraph=True
        )
        assert torch.equal(call(q, k, v), flash_attn_func(q, k, v, causal=True))
        assert f"flash_attn.{name}" in graphs[0]


def test_no_gradients_of_gradients() -> None:
    with Recorder():
        q, k, v = inputs()
        first = torch.autograd.grad(flash_attn_func(q, k, v).sum(), q, create_graph=True)[0]
        with pytest.raises(NotImplementedError, match="gradients of attention's gradients"):
            first.sum().backward()


def test_rng_state_is_on_the_device_of_q() -> None:
    """int64 (2,) on the device of q, as upstream's; wrappers' own fakes say so."""
    call = (0.1, 0.2, False, -1, -1, 0.0, None, False)
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 8, 2, 32, device="cuda")
        assert torch.ops.flash_attn._flash_attn_forward(q, q, q, *call)[3].device == q.device
    q = torch.randn(1, 8, 2, 32)
    state = torch.ops.flash_attn._flash_attn_forward(q, q, q, *call)[3]
    assert (
        state.dtype is torch.int64
        and state.shape == (2,)
        and state.device == q.device
        and state.any()
    )
    state = torch.ops.flash_attn._flash_attn_forward(q, q, q, 0.0, *call[1:])[3]
    assert not state.any()
