"""Invalid arguments: always a Python exception that names one, never a crash, never a silent
result.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flash_attention_amd as amd
import flash_attn
import flash_attn_2_cuda as raw
import flash_attn_interface as fa3
import rocflash
from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward

LEGAL = (ValueError, TypeError, NotImplementedError, RuntimeError)
B, SQ, SK, H, HK, D = 2, 5, 7, 4, 2, 16


def dense() -> dict:
    return {
        "q": torch.randn(B, SQ, H, D),
        "k": torch.randn(B, SK, HK, D),
        "v": torch.randn(B, SK, HK, D),
    }


def packed() -> dict:
    cu_q, cu_k = torch.tensor([0, 2, 7]).int(), torch.tensor([0, 6, 9]).int()
    return {
        "q": torch.randn(7, H, D),
        "k": torch.randn(9, HK, D),
        "v": torch.randn(9, HK, D),
        "cu_seqlens_q": cu_q,
        "cu_seqlens_k": cu_k,
        "max_seqlen_q": 5,
        "max_seqlen_k": 6,
    }


FA2_EXTRAS = {
    "dropout_p": 0.1,
    "softmax_scale": 0.2,
    "causal": True,
    "window_size": (3, 2),
    "softcap": 5.0,
    "alibi_slopes": torch.rand(H),
    "deterministic": True,
    "s_aux": torch.randn(H),
}


def cache() -> dict:
    return {
        "q": torch.randn(B, 1, H, D),
        "k_cache": torch.randn(B, 12, HK, D),
        "v_cache": torch.randn(B, 12, HK, D),
        "k": torch.randn(B, 1, HK, D),
        "v": torch.randn(B, 1, HK, D),
        "rotary_cos": torch.rand(12, 4),
        "rotary_sin": torch.rand(12, 4),
        "cache_seqlens": torch.tensor([3, 8]).int(),
        "cache_batch_idx": torch.tensor([1, 0]).int(),
        "softmax_scale": 0.3,
        "window_size": (4, 4),
        "softcap": 3.0,
        "num_splits": 2,
    }


def options() -> dict:
    return {
        **dense(),
        "mask": torch.ones(B, 1, SQ, SK, dtype=torch.bool),
        "bias": torch.randn(1, H, 1, SK),
        "sinks": torch.randn(H),
        "seqused_k": torch.tensor([7, 3]).int(),
        "leftpad_k": torch.tensor([1, 0]).int(),
        "attention_chunk": 4,
        "window": (3, 3),
        "dropout_p": 0.1,
        "rng_state": torch.tensor([1, 2]),
        "softcap": 3.0,
        "num_threads": 1,
    }


def of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same on NumPy's arrays; what NumPy cannot hold stays a tensor, and comes by DLPack."""

    def array(x: Any) -> Any:
        try:
            return x.numpy() if isinstance(x, torch.Tensor) else x
        except (RuntimeError, TypeError):
            return x

    def call(**arguments: Any) -> Any:
        return function(**{name: array(x) for name, x in arguments.items()})

    return call


def decode_options() -> dict:
    given = cache()
    given["window"] = given.pop("window_size")
    return {**given, "rotary_interleaved": False, "max_seqlen_q": 0}


FUNCTIONS = {
    "rocflash.attention": (rocflash.attention, options),
    "rocflash.attention of arrays": (
        of_arrays(rocflash.attention),
        lambda: {**options(), "return_weights": True, "return_lse": True},
    ),
    "packed arrays": (
        of_arrays(rocflash.attention),
        lambda: {**packed(), "return_weights": True, "num_splits": 1},
    ),
    "rocflash.decode": (rocflash.decode, decode_options),
    "rocflash.decode of arrays": (of_arrays(rocflash.decode), decode_options),
    "flash_attn_func": (flash_attn.flash_attn_func, lambda: {**dense(), **FA2_EXTRAS}),
    "flash_attn_qkvpacked_func": (
        flash_attn.flash_attn_qkvpacked_func,
        lambda: {"qkv": torch.randn(B, SQ, 3, H, D), "causal": True, "window_size": (3, 2)},
    ),
    "flash_attn_kvpacked_func": (
        flash_attn.flash_attn_kvpacked_func,
        lambda: {"q": torch.randn(B, SQ, H, D), "kv": torch.randn(B, SK, 2, HK, D), "softcap": 2.0},
    ),
    "flash_attn_varlen_func": (
        flash_attn.flash_attn_varlen_func,
        lambda: {**packed(), **FA2_EXTRAS},
    ),
    "flash_attn_varlen_qkvpacked_func": (
        flash_attn.flash_attn_varlen_qkvpacked_func,
        lambda: {
            "qkv": torch.randn(7, 3, H, D),
            "cu_seqlens": torch.tensor([0, 2, 7]).int(),
            "max_seqlen": 5,
        },
    ),
    "flash_attn_with_kvcache": (flash_attn.flash_attn_with_kvcache, cache),
    "fa3.flash_attn_func": (
        fa3.flash_attn_func,
        lambda: {**dense(), "qv": torch.randn(B, SQ, H, D), "attention_chunk": 3, "num_splits": 1},
    ),
    "fa3.flash_attn_varlen_func": (
        fa3.flash_attn_varlen_func,
        lambda: {**packed(), "seqused_q": torch.tensor([1, 5]).int(), "sm_margin": 1},
    ),
    "fa3.flash_attn_with_kvcache": (fa3.flash_attn_with_kvcache, cache),
    "fa3.flash_attn_combine": (
        fa3.flash_attn_combine,
        lambda: {
            "out_partial": torch.randn(3, B, SQ, H, D),
            "lse_partial": torch.randn(3, B, SQ, H),
        },
    ),
    "amd.flash_attn_func": (amd.flash_attn_func, lambda: {**dense(), "dropout_p": 0.1}),
    "amd.FlashAttention": (
        amd.FlashAttention(),
        lambda: {**dense(), "mask": torch.ones(B, SK, dtype=torch.bool)},
    ),
    "raw.fwd": (
        raw.fwd,
        lambda: {
            **dense(),
            "out": None,
            "alibi_slopes": torch.rand(H),
            "p_dropout": 0.1,
            "softmax_scale": 0.2,
            "is_causal": True,
            "window_size_left": 3,
            "window_size_right": 3,
            "softcap": 1.0,
            "return_softmax": True,
        },
    ),
}


def wrong_tensor(x: torch.Tensor, rng: random.Random):
    """A tensor (or not even one) that is not what x was."""
    choices = [
        lambda: x[..., : x.shape[-1] // 2],
        lambda: x[:0],
        lambda: x[None],
        lambda: x.flatten(),
        lambda: x.reshape(-1)[0],
        lambda: torch.cat((x, x)),
        lambda: torch.cat((x, x), -1),
        lambda: x.double(),
        lambda: x.to(torch.int64),
        lambda: x.to(torch.int32) - 5,
        lambda: x.to(torch.bool),
        lambda: x.to(torch.complex64),
        lambda: x.to(torch.float16),
        lambda: x.to("meta"),
        lambda: x.to_sparse() if x.is_floating_point() else x.to("meta"),
        lambda: x.expand(3, *x.shape),
        lambda: x.tolist(),
        lambda: "tensor",
        lambda: None,
        lambda: (x.float() * 1e9).to(x.dtype),
        lambda: x.to(torch.float8_e4m3fn) if x.is_floating_point() else x.to(torch.int16),
    ]
    return rng.choice(choices)()


def wrong_value(x, rng: random.Random):
    if isinstance(x, torch.Tensor):
        return wrong_tensor(x, rng)
    wrong = [
        -2,
        10**6,
        2**70,
        float("nan"),
        float("inf"),
        -0.5,
        "x",
        [],
        None,
        (1,),
        (1, 2, 3),
        object(),
    ]
    return rng.choice(wrong)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_valid_input_is_accepted(name: str) -> None:
    function, make = FUNCTIONS[name]
    function(**make())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fuzz(name: str) -> None:
    """Hundreds of calls with one to three corrupted arguments. A call may still be valid; if not,
    the error names one of them.
    """
    function, make = FUNCTIONS[name]
    rng = random.Random(name)
    refused = 0
    for _ in range(250):
        arguments = make()
        spoilt = rng.sample(list(arguments), rng.randint(1, min(3, len(arguments))))
        for key in spoilt:
            arguments[key] = wrong_value(arguments[key], rng)
        try:
            function(**arguments)
        except LEGAL as error:
            refused += 1
            message = str(error)
            if message.startswith("rocflash::decode_append() Expected a value of type"):
                continue  # torch's own message
            assert re.match(
                r"^[a-z_0-9.]+( \(block_table\))? "
                r"(is|cannot|has|exceeds|overlaps|must|ends|decreases|begins|requires) ",
                message,
            ), f"{spoilt}: {type(error)}: {message}"
    assert refused > 100


@pytest.mark.parametrize(
    ("spoil", "kind", "text"),
    [
        ({"q": "no tensor"}, TypeError, "q has type str"),
        ({"k": torch.randn(B, SK, 3, D)}, ValueError, "v has shape"),
        ({"v": torch.randn(B, SK + 1, HK, D)}, ValueError, r"v has shape \(2, 8, 2, 16\)"),
        (
            {"q": torch.randn(B, SQ, H, D, dtype=torch.float64)},
            (ValueError, NotImplementedError),
            "q has dtype f64, but k and v have dtype f32",
        ),
        ({"v": torch.randn(B, SK, HK, D).half()}, ValueError, "v has dtype f16; it must be f32"),
        ({"q": torch.randn(B, SQ, H, D, device="meta")}, NotImplementedError, "q is on meta"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p is 1"),
        ({"softcap": -1.0}, ValueError, "softcap is -1"),
        ({"window_size": (-2, 0)}, ValueError, "window has left bound -2"),
        ({"window_size": 5}, ValueError, "window_size is 5"),
        ({"alibi_slopes": torch.rand(3)}, ValueError, r"alibi_slopes has shape \(3,\)"),
        ({"softmax_scale": float("nan")}, ValueError, "softmax_scale is nan"),
        ({"causal": "yes"}, TypeError, "causal is 'yes'"),
        ({"s_aux": torch.rand(5)}, ValueError, r"sinks has shape \(5,\)"),
    ],
    ids=lambda x: str(x)[:30] if isinstance(x, (str, dict)) else "",
)
def test_messages(spoil: dict, kind, text: str) -> None:
    with pytest.raises(kind, match=text):
        flash_attn.flash_attn_func(**{**dense(), **spoil})


def test_private_operators_validate_too() -> None:
    d = dense()
    keywords = (0.0, 0.25, False, -1, -1, 0.0, None, False)
    with pytest.raises(ValueError, match="^k has shape"):
        _flash_attn_forward(d["q"], d["k"][..., :8], d["v"], *keywords)
    out, lse, *_ = _flash_attn_forward(*d.values(), *keywords)
    grads = [torch.empty_like(x) for x in d.values()]
    with pytest.raises(ValueError, match="^rng_state"):
        _flash_attn_backward(
            out, *d.values(), out, lse, *grads, 0.3, 0.25, False, -1, -1, 0.0, None, False
        )
    with pytest.raises(ValueError, match="^dk has shape"):
        _flash_attn_backward(
            out, *d.values(), out, lse, grads[0], grads[0], grads[2], 0.0, 0.25, False, -1, -1, 0.0,
            None, False,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_k"])
def test_int64_lengths_are_rejected_with_their_dtype(name: str) -> None:
    """int64 is torch's default for integers."""
    x = torch.randn(7, 2, 16)
    lengths = {
        side: torch.tensor([0, 7], dtype=torch.int32) for side in ("cu_seqlens_q", "cu_seqlens_k")
    }
    lengths[name] = lengths[name].long()
    with pytest.raises(ValueError, match=f"^{name} has dtype i64; it must be i32$"):
        flash_attn.flash_attn_varlen_func(x, x, x, **lengths, max_seqlen_q=7, max_seqlen_k=7)
