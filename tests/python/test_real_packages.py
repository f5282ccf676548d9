"""Clients whose packages install here, with their own code: diffusers, ring-flash-attention,
xformers. (transformers has test_transformers.py.)
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from child import succeeds
from ranks import Ranks

from flash_attn import flash_attn_func, flash_attn_varlen_func


def test_diffusers(tmp_path: Path) -> None:
    """Its backends "flash" and "flash_varlen" on CPU tensors. It reads versions from installed
    metadata, which the tests' source tree has none of.
    """
    info = tmp_path / "flash_attn-2.8.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.utils.import_utils import is_flash_attn_available
assert is_flash_attn_available()
q, k, v = (torch.randn(2, 24, 4, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
heads_first = [x.transpose(1, 2) for x in (q, k, v)]
exact = torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)
for backend in ("flash", "flash_varlen"):
    out = dispatch_attention_fn(q, k, v, backend=backend)
    torch.testing.assert_close(out, exact, rtol=0.02, atol=0.02)
    found, expected = (
        torch.autograd.grad(y.float().square().sum(), (q, k, v), retain_graph=True)
        for y in (out, exact)
    )
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)
"""
    succeeds(code)


@pytest.mark.parametrize("mask", [None, (2, 24), (20, 24), (2, 1, 20, 24), (2, 4, 20, 24)], ids=str)
@pytest.mark.parametrize("kind", [bool, float])
def test_diffusers_backend(mask: tuple[int, ...] | None, kind: type) -> None:
    """The backend "rocflash", against diffusers' "native"."""
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    import rocflash.integrations.diffusers as bridge

    assert bridge.register() == bridge.register() == "rocflash"
    q, k, v = (torch.randn(2, n, 4, 32, requires_grad=True) for n in (20, 24, 24))
    masked = None
    if mask is not None:
        masked = torch.randn(mask) if kind is float else torch.rand(mask) > 0.3
        if kind is bool:
            masked[..., 0] = True
    results = []
    for backend in ("native", "rocflash"):
        out = dispatch_attention_fn(q, k, v, attn_mask=masked, scale=0.2, backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_diffusers_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's set_attention_backend, and what the backend rejects."""
    from diffusers import FluxTransformer2DModel
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    import rocflash.integrations.diffusers as bridge

    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    given = {
        "hidden_states": torch.randn(1, 16, 4), "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32), "timestep": torch.ones(1),
        "img_ids": torch.randn(16, 3), "txt_ids": torch.zeros(8, 3),
    }  # fmt: skip
    calls = []
    real = bridge.rocflash.attention
    monkeypatch.setattr(
        bridge.rocflash, "attention", lambda *x, **y: (calls.append(1), real(*x, **y))[1]
    )
    with torch.no_grad():
        expected = model(**given).sample
        model.set_attention_backend(bridge.register())
        found = model(**given).sample
    assert len(calls) == 2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    q, k = torch.randn(1, 9, 4, 16), torch.randn(1, 9, 2, 16)
    with pytest.raises(NotImplementedError, match="^key has 2 heads, and query 4; without"):
        dispatch_attention_fn(q, k, k, backend="rocflash")
    causal = dispatch_attention_fn(q, k, k, is_causal=True, enable_gqa=True, backend="rocflash")
    native = dispatch_attention_fn(q, k, k, is_causal=True, enable_gqa=True, backend="native")
    torch.testing.assert_close(causal, native, rtol=1e-4, atol=1e-5)
    out, lse = bridge.attention(q, q, q, return_lse=True)
    assert out.shape == q.shape and lse.shape == (1, 9, 4)
    with pytest.raises(NotImplementedError, match="context parallelism; it must be 'flash'"):
        bridge.attention(q, q, q, _parallel_config=object())


def ring(kind: str) -> list[torch.Tensor]:
    """On each rank: attention of its part of the rows, and its gradients."""
    # Its adapter for transformers is of version 4, and its package imports that first.
    adapters = sys.modules.setdefault("ring_flash_attn.adapters", types.ModuleType("adapters"))
    adapters.__getattr__ = lambda name: None  # type: ignore[method-assign]
    import ring_flash_attn

    call = getattr(ring_flash_attn, f"{kind}_flash_attn_func")
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [rows_of(kind, rank, size, x).clone().requires_grad_() for x in whole()]
    out = call(*parts[:3], causal=True)
    out.backward(parts[3].detach())
    return [out.detach(), *(x.grad for x in parts[:3])]


def whole() -> list[torch.Tensor]:
    """In bf16: of f32 gradients it sends buffers that it writes to again."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 32, 4, 32, generator=generator).bfloat16() for _ in range(4)]


def rows_of(kind: str, rank: int, size: int, x: torch.Tensor) -> torch.Tensor:
    """Consecutive rows, or for zigzag one piece from each end."""
    if kind != "zigzag_ring":
        return x.chunk(size, 1)[rank]
    pieces = x.chunk(2 * size, 1)
    return torch.cat((pieces[rank], pieces[2 * size - 1 - rank]), 1)


@pytest.fixture(scope="module")
def two():
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("kind", ["ring", "zigzag_ring"])
def test_ring_flash_attention(kind: str, two: Ranks) -> None:
    q, k, v, dout = whole()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = flash_attn_func(*leaves, causal=True)
    expected = [out.detach(), *torch.autograd.grad(out, leaves, dout)]
    for rank, found in enumerate(two.run(ring, kind)):
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, rows_of(kind, rank, 2, b), rtol=0.03, atol=0.03)


def test_xformers() -> None:
    """Its own wrapper around the raw module, below the operator that it registers for CUDA
    alone.
    """
    from xformers.ops.fmha import flash

    assert flash.FLASH_VERSION == "2.8.3" and not flash._USE_PT_FLASH_ATTN
    q, k, v = (torch.randn(2, 24, 4, 32) for _ in range(3))
    forward = flash._flash_fwd._init_fn
    out, lse, state = forward(
        q, k, v, None, None, None, 24, 24, 0.0, 0.2, True, -1, -1, False, None
    )
    assert torch.equal(out, flash_attn_func(q, k, v, softmax_scale=0.2, causal=True))
    assert lse.shape == (2, 4, 24) and state.device == q.device
    packed, cu = [x.flatten(0, 1) for x in (q, k, v)], torch.tensor([0, 24, 48]).int()
    found = forward(*packed, cu, cu, None, 24, 24, 0.0, 0.2, True, -1, -1, False, None)[0]
    assert torch.equal(
        found, flash_attn_varlen_func(*packed, cu, cu, 24, 24, softmax_scale=0.2, causal=True)
    )
