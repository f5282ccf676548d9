"""The Triton backend on the CPU, by Triton's interpreter: run by test_triton.py.

A process of its own, since Triton decides at import whether it interprets (TRITON_INTERPRET=1). Tiles are small, so that
short sequences have several blocks and every part of the kernels' loops runs.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

import flash_attn
import rocflash
from flash_attn.flash_attn_triton_amd import interface_v2
from reference import check
from rocflash._backends.triton import tiles

SEED = torch.tensor([2**62 + 12345, 2**40 + 77])


def leaves_of(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def compare(
    name: str, lengths: tuple[int, int], heads: tuple[int, int], sizes: tuple[int, int], dtype: torch.dtype, **options: Any
) -> None:
    """Out, lse, weights and all gradients against the definition; what is dropped, exactly."""
    (sq, sk), (h, hk), (d, dv) = lengths, heads, sizes
    batch = () if "cu_seqlens_q" in options else (len(options.get("seqused_k", "1")),)
    leaves = leaves_of([(*batch, sq, h, d), (*batch, sk, hk, d), (*batch, sk, hk, dv)], dtype)
    dout = torch.randn(*batch, sq, h, dv).to(dtype)
    graded = [options[n].requires_grad_() for n in ("sinks", "alibi_slopes") if n in options]
    if options.get("dropout_p"):
        options["rng_state"] = SEED

    def results(backend: str) -> list[Tensor]:
        asked = {"return_lse": True, "return_weights": True, "backend": backend}
        out, lse, weights = rocflash.attention(*leaves, **options, **asked)
        return [out.detach(), lse, weights, *torch.autograd.grad(out, leaves + graded, dout)]

    exact, plain, found = (results(x) for x in ("reference", "plain", "triton"))
    assert torch.equal(found[2] < 0, exact[2] < 0), f"{name}: dropout"
    labels = ("out", "lse", "weights", "dq", "dk", "dv", "dsinks", "dslopes")
    for label, x, y, z in zip(labels, found, exact, plain):
        seen = y.isfinite()
        assert torch.equal(x[~seen], y[~seen].to(x.dtype)), f"{name}: {label}"
        # Sums over all queries are few numbers, in which plain attention may be lucky: one rounding is allowed.
        factor, atol = (2, 0.0) if label in ("out", "lse", "weights") else (3, 0.0)
        if label in ("dsinks", "dslopes"):
            atol = 2 * torch.finfo(dtype).eps * y.abs().max().item()
        check(f"{name}: {label}", x[seen], y[seen], z[seen], factor, atol)


def options_one_by_one() -> None:
    f16, bf16 = torch.float16, torch.bfloat16
    packed = {
        "cu_seqlens_q": torch.tensor([1, 18, 18, 45], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 40, 50, 52], dtype=torch.int32),
    }
    used = {
        "seqused_q": torch.tensor([20, 33], dtype=torch.int32),
        "seqused_k": torch.tensor([37, 12], dtype=torch.int32),
        "leftpad_k": torch.tensor([5, 0], dtype=torch.int32),
    }
    compare("causal, grouped", (40, 50), (4, 2), (32, 32), f16, causal=True)
    compare("window, odd sizes", (50, 41), (2, 1), (19, 40), bf16, window=(9, 4))
    compare("packed", (48, 55), (2, 2), (16, 16), f16, causal=True, **packed)
    compare("used", (33, 40), (1, 1), (24, 24), bf16, **used)
    everything = {"softcap": 6.0, "window": (20, 3), "dropout_p": 0.3, "sinks": torch.randn(2)}
    compare("everything", (50, 40), (2, 1), (32, 48), f16, alibi_slopes=torch.rand(2), attention_chunk=24, **everything)
    compare("no keys", (5, 0), (1, 1), (16, 16), f16, causal=True)


def near(x: Tensor, y: Tensor) -> None:
    assert (x.float() - y.float()).abs().max() < 2e-2


def functions_of_flash_attn() -> None:
    """Served by the backend that is chosen, with the library's dropout; so is a compiled graph."""
    q, k, v = leaves_of([(1, 20, 2, 16), (1, 30, 1, 16), (1, 30, 1, 16)], torch.float16)

    def all_of_it() -> list[Tensor]:
        torch.manual_seed(5)
        out, lse, dropped = flash_attn.flash_attn_func(q, k, v, dropout_p=0.4, return_attn_probs=True)
        cu_q, cu_k = (torch.tensor([0, n], dtype=torch.int32) for n in (20, 30))
        packed = flash_attn.flash_attn_varlen_func(q[0], k[0], v[0], cu_q, cu_k, 20, 30, causal=True)
        qkv = flash_attn.flash_attn_qkvpacked_func(torch.stack((q, q * 0.5, q + 1), 2), window_size=(4, 4))
        return [out, lse, dropped, packed, qkv, *torch.autograd.grad((out.sum() + packed.sum()), (q, k, v))]

    wanted = all_of_it()
    with rocflash.use_backend("triton"):
        for x, y in zip(all_of_it(), wanted):
            near(x, y)
        assert torch.equal(all_of_it()[2] < 0, wanted[2] < 0)
        compiled = torch.compile(lambda q: flash_attn.flash_attn_func(q * 2, k, v), fullgraph=True, backend="aot_eager")
        out = compiled(q)
        near(torch.autograd.grad(out.sum(), q)[0], torch.autograd.grad(flash_attn.flash_attn_func(q * 2, k, v).sum(), q)[0])
    with torch.no_grad():
        raw = interface_v2.fwd(q, k, v, None, None, 0.0, 0.25, True, -1, -1, 0.0, False, None)
        near(raw[0], flash_attn.flash_attn_func(q, k, v, causal=True))


def main() -> None:
    tiles.choices = lambda kernel, family, columns: [tiles.Tile(16, 32, 4, 1)]
    torch.manual_seed(0)
    options_one_by_one()
    functions_of_flash_attn()
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
