"""The backend `ck` with a mock of AITER's signatures: the arguments it passes, and the calls it
rejects.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import rocflash
from rocflash._backends import ck

calls: list[dict[str, Any]] = []


def _exact(a: dict[str, Any]) -> dict[str, Any]:
    """AITER's arguments in terms of rocflash.attention's."""
    left, right = a.get("window_size", (a.get("window_size_left"), a.get("window_size_right")))[:2]
    names = ("softmax_scale", "causal", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k")
    options = {n: a[n] for n in names if a.get(n) is not None}
    return {
        **options,
        "softcap": a.get("logits_soft_cap", 0.0),
        "window": (left, right),
        "backend": "reference",
    }


def _forward(a: dict[str, Any]) -> Any:
    calls.append(a)
    assert a["return_lse"] and not torch.is_grad_enabled()
    out, lse = rocflash.attention(a["q"], a["k"], a["v"], return_lse=True, **_exact(a))
    return out, lse.where(lse != torch.inf, -torch.inf)  # CK's value for a fully masked row


def _backward(a: dict[str, Any]) -> torch.Tensor:
    calls.append(a)
    assert all(a[n].shape[-1] % 8 == 0 for n in ("q", "v", "dout", "out", "dq"))
    leaves = [a[n].detach().requires_grad_() for n in "qkv"]
    with torch.enable_grad():
        out = rocflash.attention(*leaves, **_exact(a))
        found = torch.autograd.grad(out, leaves, a["dout"])
    for name, x in zip(("dq", "dk", "dv"), found):
        a[name].copy_(x)
    return a["softmax_lse"]


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1, 0), bias=None,
    alibi_slopes=None,
    deterministic=True, return_lse=False, return_attn_probs=False, how_v3_bf16_cvt=1,
    cu_seqlens_q=None,
    cu_seqlens_kv=None,
):  # fmt: skip
    return _forward(locals())


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_q=0, dropout_p=0.0,
    softmax_scale=None,
    logits_soft_cap=0.0, causal=False, window_size=(-1, -1, 0), bias=None, alibi_slopes=None,
    deterministic=False,
    return_lse=False, return_attn_probs=False, how_v3_bf16_cvt=1, block_table=None, out=None,
    cu_seqlens_q_padded=None,
    cu_seqlens_k_padded=None,
):  # fmt: skip
    return _forward(locals())


def _flash_attn_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, dbias, dropout_p, softmax_scale, causal,
    window_size_left,
    window_size_right, bias, alibi_slopes, deterministic, rng_state=None, is_v3_atomic_fp32=True,
    how_v3_bf16_cvt=1,
):  # fmt: skip
    return _backward(locals())


def _flash_attn_varlen_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
    max_seqlen_k, dropout_p,
    softmax_scale, causal, window_size_left, window_size_right, alibi_slopes, deterministic,
    rng_state=None,
    is_v3_atomic_fp32=True, how_v3_bf16_cvt=1, zero_tensors=False, cu_seqlens_q_padded=None,
    cu_seqlens_k_padded=None,
):  # fmt: skip
    return _backward(locals())


def old_flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
    deterministic=True, return_lse=False,
    return_attn_probs=False,
):  # fmt: skip
    return _forward(locals())


@pytest.fixture
def aiter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    package, ops, mha = (ModuleType(name) for name in ("aiter", "aiter.ops", "aiter.ops.mha"))
    package.flash_attn_func, package.flash_attn_varlen_func = (
        flash_attn_func,
        flash_attn_varlen_func,
    )
    mha._flash_attn_backward = _flash_attn_backward
    mha._flash_attn_varlen_backward = _flash_attn_varlen_backward
    for module in (package, ops, mha):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(ck, "_check_device", lambda q: None)
    calls.clear()
    yield package


def inputs(d: int, *lengths: int, grad: bool = True) -> list[torch.Tensor]:
    return [torch.randn(1, n, h, d).half().requires_grad_(grad) for n, h in zip(lengths, (4, 2, 2))]


def results(leaves: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    out, lse = rocflash.attention(*leaves, return_lse=True, **options)
    return [out, lse, *torch.autograd.grad(out.float().square().sum(), leaves)]


def test_calls_use_aiter(aiter: ModuleType) -> None:
    leaves = inputs(20, 30, 25, 25)
    options = {
        "causal": True,
        "window": (9, 3),
        "alibi_slopes": torch.rand(4),
        "deterministic": True,
    }
    for x, y in zip(
        results(leaves, backend="ck", **options), results(leaves, backend="reference", **options)
    ):
        assert torch.equal(x.isfinite(), y.isfinite()) and torch.equal(
            x[~x.isfinite()], y[~y.isfinite()]
        )
        assert (x - y)[x.isfinite()].abs().max() < 2e-2
    forward, backward = calls
    assert (
        forward["window_size"] == (9, 0)
        and forward["deterministic"]
        and forward["dropout_p"] == 0.0
    )
    assert (backward["window_size_left"], backward["window_size_right"]) == (9, 0) and backward[
        "dbias"
    ] is None


def test_varlen_sequences(aiter: ModuleType) -> None:
    leaves = [x.detach()[0].requires_grad_() for x in inputs(16, 30, 25, 25)]
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([2, 11, 28], [0, 12, 25]))
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": True}
    for x, y in zip(
        results(leaves, backend="ck", **options), results(leaves, backend="reference", **options)
    ):
        assert torch.equal(x.isfinite(), y.isfinite()) and (x - y)[x.isfinite()].abs().max() < 2e-2
    assert (calls[0]["max_seqlen_q"], calls[0]["max_seqlen_k"], calls[0]["window_size"]) == (
        17,
        13,
        (-1, -1),
    )
    with torch.no_grad():
        assert rocflash.attention(*leaves, backend="ck", softcap=5.0, **options).isfinite().all()
    assert calls[-1]["logits_soft_cap"] == 5.0
    with pytest.raises(
        rocflash.Unsupported, match="^softcap is 5.0; backend 'ck' has no gradients with it"
    ):
        rocflash.attention(*leaves, backend="ck", softcap=5.0, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout_p": 0.1}, "dropout_p is 0.1; backend 'ck' draws other random bits"),
        ({"softcap": 3.0}, "softcap is 3.0; backend 'ck' takes it with varlen sequences alone"),
        ({"sinks": torch.ones(4)}, "sinks is a tensor of shape"),
        ({"mask": torch.ones(1, 1, 8, 8, dtype=torch.bool)}, "mask is a tensor"),
        ({"attention_chunk": 4}, "attention_chunk is 4; backend 'ck' does not take it"),
        ({"seqused_k": torch.ones(1, dtype=torch.int32)}, "seqused_k is a tensor"),
        ({"num_splits": 2}, "num_splits is 2; backend 'ck'"),
        ({"return_weights": True}, "return_weights is True; backend 'ck'"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_options_are_rejected_by_name(
    aiter: ModuleType, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(rocflash.Unsupported, match=f"^{message}"):
        rocflash.attention(*inputs(16, 8, 8, 8, grad=False), backend="ck", **options)
    assert not calls


def test_missing_arguments_of_an_aiter_version(
    aiter: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiter, "flash_attn_func", old_flash_attn_func)
    x = inputs(16, 8, 8, 8, grad=False)
    assert rocflash.attention(*x, backend="ck").shape == (1, 8, 4, 16)
    with pytest.raises(
        rocflash.Unsupported, match="^alibi_slopes is given; this AITER's old_flash_attn_func"
    ):
        rocflash.attention(*x, backend="ck", alibi_slopes=torch.rand(4))
    slopes = torch.rand(4).requires_grad_()
    with pytest.raises(rocflash.Unsupported, match="^alibi_slopes requires a gradient"):
        rocflash.attention(*x, backend="ck", alibi_slopes=slopes)


def test_without_aiter_the_message_has_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiter", None)
    with pytest.raises(
        rocflash.Unsupported,
        match="^backend is 'ck'; aiter cannot be imported .*github.com/ROCm/aiter",
    ):
        rocflash.attention(*inputs(16, 8, 8, 8), backend="ck")
    with rocflash.use_backend("ck"):
        assert rocflash.info()["backend_symbol"] == "aiter.flash_attn_func"
