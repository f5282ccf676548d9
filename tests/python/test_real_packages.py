"""Clients whose packages install here, with their own code: diffusers, ring-flash-attention, xformers. (transformers has
test_transformers.py.)"""

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
    """Its backends "flash" and "flash_varlen" on CPU tensors. It reads versions from installed metadata, which the
    tests' source tree has none of."""
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
exact = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
for backend in ("flash", "flash_varlen"):
    out = dispatch_attention_fn(q, k, v, backend=backend)
    torch.testing.assert_close(out, exact, rtol=0.02, atol=0.02)
    found, expected = (torch.autograd.grad(y.float().square().sum(), (q, k, v), retain_graph=True) for y in (out, exact))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)
"""
    succeeds(code)


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
    """Its own wrapper around the raw module, below the operator that it registers for CUDA alone."""
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
