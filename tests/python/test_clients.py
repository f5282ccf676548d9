"""What real software imports and calls, in its own words; docs/clients.md has the table."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

import flash_attn_3.flash_attn_interface as inner
import flash_attn_interface as fa3
from reference import attention


def qkv(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(2, n, h, 32, dtype=dtype) for n, h in ((7, 4), (9, 2), (9, 2))]


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_fa3_has_both_places() -> None:
    """Megatron and TransformerEngine to 2.14 import the inner module, others the one at top level."""
    for name in fa3.__all__:
        assert getattr(fa3, name) is getattr(inner, name)


def test_flash_attn_alone_brings_no_fa3() -> None:
    """Wan, SkyReels and ModernBERT take flash_attn_interface wherever it can be imported."""
    import flash_attn

    place = str(flash_attn.__path__[0]).rsplit("/", 1)[0]
    code = (
        f"import sys; sys.path[:] = [x for x in sys.path if 'flash-attn-3' not in x]\n"
        f"assert {place!r} in sys.path\n"
        "import importlib.util as u, flash_attn\n"
        "for name in ('flash_attn_interface', 'flash_attn_3', 'flash_attn_config'):\n"
        "    assert u.find_spec(name) is None, name\n"
        "assert 'flash_attn_3' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fa3_extension_registers_the_operators() -> None:
    """xformers imports flash_attn_3._C and looks at the operators' schemas."""
    code = (
        "import torch, flash_attn_3._C\n"
        "assert len(torch.ops.flash_attn_3.fwd.default._schema.arguments) == 34\n"
        "assert len(torch.ops.flash_attn_3.bwd.default._schema.arguments) == 22\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fa3_build_flags() -> None:
    """lmdeploy asks for head sizes, benchmarks for fp8."""
    from flash_attn_config import CONFIG

    flags = CONFIG["build_flags"]
    assert flags["FLASHATTENTION_DISABLE_FP8"] is True
    assert not any(on for name, on in flags.items() if not name.endswith("FP8"))
    assert "FLASH_ATTENTION_DISABLE_HDIMDIFF192" in flags
    assert [fa3.round_up_headdim(n) for n in (8, 64, 80, 128, 160, 200)] == [
        64, 64, 96, 128, 192, 256,
    ]  # fmt: skip


def test_fa3_private_functions_by_the_names_of_2_8_3() -> None:
    """yunchang, xDiT and TransformerEngine of 2025."""
    q, k, v = qkv()
    given = torch.empty_like(q)
    out, lse, *_ = fa3._flash_attn_forward(
        q=q, k=k, v=v, out=given, softmax_scale=0.2, causal=True, window_size=(3, -1), softcap=2.0
    )
    assert out.data_ptr() == given.data_ptr()
    modern = fa3._flash_attn_forward(
        q, k, v, softmax_scale=0.2, is_causal=True, window_size_left=3, softcap=2.0
    )
    assert torch.equal(modern[0], out) and torch.equal(modern[1], lse)
    close(out, attention(q, k, v, causal=True, window=(3, -1), softcap=2.0, scale=0.2)[0])
    found = []
    for names in (
        {"causal": True, "window_size": (3, -1)},
        {"is_causal": True, "window_size_left": 3},
        # Megatron fills in every name that it finds in the signature.
        {"causal": True, "is_causal": True, "window_size": (3, -1), "window_size_left": -1},
    ):
        into = {name: torch.empty_like(x) for name, x in (("dq", q), ("dk", k), ("dv", v))}
        fa3._flash_attn_backward(
            out, q, k, v, out, lse, None, None, None, None, 7, 9, **into, softmax_scale=0.2,
            softcap=2.0, deterministic=False, sm_margin=0, **names,
        )  # fmt: skip
        found.append(into)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    exact = attention(*leaves, causal=True, window=(3, -1), softcap=2.0, scale=0.2)[0]
    for name, expected in zip(("dq", "dk", "dv"), torch.autograd.grad(exact, leaves, out)):
        close(found[0][name], expected)
        assert torch.equal(found[0][name], found[1][name])
        assert torch.equal(found[0][name], found[2][name])


def test_fa3_private_names_must_agree() -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"^window_size: \(2, 0\); it is another name of"):
        fa3._flash_attn_forward(q, k, v, window_size=(2, 0), window_size_left=3)
    with pytest.raises(ValueError, match=r"^window_size_left: \(2, 0\); a pair goes by"):
        fa3._flash_attn_forward(q, k, v, window_size_left=(2, 0))
    with pytest.raises(ValueError, match="^out: is given together with out_"):
        fa3._flash_attn_forward(q, k, v, out=q.clone(), out_=q.clone())
    assert {"out", "out_"} <= set(inspect.signature(fa3._flash_attn_forward).parameters)
