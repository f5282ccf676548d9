"""The Triton backend on the CPU in Triton's interpreter: run by test_triton.py.

A separate process, since Triton decides at import whether it interprets (TRITON_INTERPRET=1). Tiles
are small, so that short sequences have several blocks and every part of the kernels' loops runs.
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
from rocflash._c.choice import BACKENDS
from rocflash._c.options import DEFAULTS, Options
from rocflash._torch import calls

SEED = torch.tensor([2**62 + 12345, 2**40 + 77])


def leaves_of(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def compare(
    name: str,
    lengths: tuple[int, int],
    heads: tuple[int, int],
    sizes: tuple[int, int],
    dtype: torch.dtype,
    **options: Any,
) -> None:
    """Out, lse, weights and all gradients against the definition; what is dropped, exactly."""
    (sq, sk), (h, hk), (d, dv) = lengths, heads, sizes
    batch = () if "cu_seqlens_q" in options else (len(options.get("seqused_k", "1")),)
    leaves = leaves_of([(*batch, sq, h, d), (*batch, sk, hk, d), (*batch, sk, hk, dv)], dtype)
    dout, dlse = torch.randn(*batch, sq, h, dv).to(dtype), torch.randn(*batch, h, sq)
    names = [n for n in ("sinks", "alibi_slopes", "bias") if n in options]
    graded = [options[n].requires_grad_() for n in names]
    if options.get("dropout_p"):
        options["rng_state"] = SEED

    def results(backend: str) -> list[Tensor]:
        asked = {"return_lse": True, "return_weights": True, "backend": backend}
        out, lse, weights = rocflash.attention(*leaves, **options, **asked)
        found = torch.autograd.grad([out, lse], leaves + graded, [dout, dlse])
        return [out.detach(), lse.detach(), weights, *found]

    exact, unfused, found = (results(x) for x in ("reference", "naive", "triton"))
    assert torch.equal(found[2] < 0, exact[2] < 0), f"{name}: dropout"
    labels = ("out", "lse", "weights", "dq", "dk", "dv", *names)
    for label, x, y, z in zip(labels, found, exact, unfused):
        finite = y.isfinite()
        assert torch.equal(x[~finite], y[~finite].to(x.dtype)), f"{name}: {label}"
        # Sums over all queries are few numbers, in which naive attention may be lucky: one rounding
        # is allowed.
        factor, atol = (2, 0.0) if label in ("out", "lse", "weights") else (3, 0.0)
        if label in names:
            atol = 2 * torch.finfo(dtype).eps * y.abs().max().item()
        check(f"{name}: {label}", x[finite], y[finite], z[finite], factor, atol)


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
    compare(
        "everything",
        (50, 40),
        (2, 1),
        (32, 48),
        f16,
        alibi_slopes=torch.rand(2),
        attention_chunk=24,
        **everything,
    )
    mask = torch.rand(2, 1, 20, 37) > 0.4
    mask[0, 0, 3] = False  # a fully masked row
    b = {"seqused_k": torch.tensor([37, 30], dtype=torch.int32)}
    compare("mask", (20, 37), (2, 1), (16, 16), bf16, mask=mask, causal=True, **b)
    compare("bias", (20, 37), (2, 2), (16, 16), f16, bias=torch.randn(1, 2, 1, 37), **b)
    compare("no keys", (5, 0), (1, 1), (16, 16), f16, causal=True)


def near(x: Tensor, y: Tensor) -> None:
    assert (x.float() - y.float()).abs().max() < 2e-2


def functions_of_flash_attn() -> None:
    """Served by the backend that is chosen, with the library's dropout; so is a compiled graph."""
    q, k, v = leaves_of([(1, 20, 2, 16), (1, 30, 1, 16), (1, 30, 1, 16)], torch.float16)

    def all_of_it() -> list[Tensor]:
        torch.manual_seed(5)
        out, lse, dropped = flash_attn.flash_attn_func(
            q, k, v, dropout_p=0.4, return_attn_probs=True
        )
        cu_q, cu_k = (torch.tensor([0, n], dtype=torch.int32) for n in (20, 30))
        packed = flash_attn.flash_attn_varlen_func(
            q[0], k[0], v[0], cu_q, cu_k, 20, 30, causal=True
        )
        qkv = flash_attn.flash_attn_qkvpacked_func(
            torch.stack((q, q * 0.5, q + 1), 2), window_size=(4, 4)
        )
        return [
            out,
            lse,
            dropped,
            packed,
            qkv,
            *torch.autograd.grad((out.sum() + packed.sum()), (q, k, v)),
        ]

    wanted = all_of_it()
    with rocflash.use_backend("triton"):
        for x, y in zip(all_of_it(), wanted):
            near(x, y)
        assert torch.equal(all_of_it()[2] < 0, wanted[2] < 0)
        compiled = torch.compile(
            lambda q: flash_attn.flash_attn_func(q * 2, k, v), fullgraph=True, backend="aot_eager"
        )
        out = compiled(q)
        near(
            torch.autograd.grad(out.sum(), q)[0],
            torch.autograd.grad(flash_attn.flash_attn_func(q * 2, k, v).sum(), q)[0],
        )
    with torch.no_grad():
        raw = interface_v2.fwd(q, k, v, None, None, 0.0, 0.25, True, -1, -1, 0.0, False, None)
        near(raw[0], flash_attn.flash_attn_func(q, k, v, causal=True))


def caches() -> None:
    """New keys are appended, rotated and found in pages, as the library does it."""
    f16 = {"dtype": torch.float16}
    q, k, v = (torch.randn(2, 3, h, 16, **f16) for h in (4, 2, 2))
    cos, sin = torch.rand(64, 4, **f16), torch.rand(64, 4, **f16)
    lengths = torch.tensor([5, 17], dtype=torch.int32)
    kinds = (
        (
            (8, 6, 2, 16),
            {"block_table": torch.tensor([[3, 1, 7, 0], [2, 6, 5, 4]], dtype=torch.int32)},
        ),
        (
            (3, 24, 2, 16),
            {"cache_batch_idx": torch.tensor([2, 0], dtype=torch.int32), "causal": True},
        ),
        (
            (2, 24, 2, 16),
            {"cache_leftpad": torch.tensor([1, 4], dtype=torch.int32), "softcap": 3.0},
        ),
    )
    for shape, options in kinds:
        cache = [torch.randn(shape, **f16) for _ in "kv"]
        mine = [x.clone() for x in cache]
        rotary = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": "causal" in options}
        more = {
            "k": k,
            "v": v,
            "cache_seqlens": lengths,
            "return_softmax_lse": True,
            **rotary,
            **options,
        }
        wanted = flash_attn.flash_attn_with_kvcache(q, *cache, **more)
        with rocflash.use_backend("triton"):
            found = flash_attn.flash_attn_with_kvcache(q, *mine, **more)
        for x, y in zip((*found, *mine), (*wanted, *cache)):
            near(x, y)
    table = kinds[0][1]["block_table"]
    cu = torch.tensor([0, 3, 6], dtype=torch.int32)
    pages = [torch.randn(8, 6, 2, 16, **f16) for _ in "kv"]
    packed = (q.flatten(0, 1), *pages, cu, torch.tensor([0, 5, 22], dtype=torch.int32), 3, 17)
    wanted = flash_attn.flash_attn_varlen_func(*packed, causal=True, block_table=table)
    with rocflash.use_backend("triton"):
        near(flash_attn.flash_attn_varlen_func(*packed, causal=True, block_table=table), wanted)
        dropout_mask = pages[0].clone()
        try:
            flash_attn.flash_attn_with_kvcache(q, *pages, k, v, cache_seqlens=23, block_table=table)
            raise AssertionError("there is no capacity for three more keys")
        except rocflash.InvalidArgument as refusal:
            assert str(refusal).startswith("cache_seqlens is 26 for sequence 0"), refusal
        assert torch.equal(dropout_mask, pages[0]), "a call that is refused has written nothing"


def large_scores() -> None:
    """Finite scores of any size give what the double-precision reference gives: a large softcap
    converges to none, and biases and sinks may be as large as f32 allows. The baseline is not one
    here: naive attention in f16 loses such scores.
    """
    low = torch.finfo(torch.float32).min
    bias = torch.zeros(1, 2, 20, 37)
    bias[:, :, 3], bias[:, :, 5], bias[:, :, 6] = low, -3e38, 3e38
    bias[:, :, 7, ::2], bias[:, :, 8, 4] = low, 3e38
    cases: list[dict[str, Any]] = [{"softcap": x} for x in (1e-38, 5.0, 1e6, 1e7, 1e30, 3e38)]
    cases += [{"softmax_scale": -3e38, "softcap": 30.0}]  # products that exceed f32
    cases += [
        {"bias": bias},
        {"sinks": torch.tensor([-3e38, 3e38])},
        {"alibi_slopes": torch.tensor([1e37, 3e35])},
    ]
    cases += [
        {"bias": bias, "softcap": 1e7, "causal": True},
        {"mask": torch.rand(1, 1, 20, 37) > 0.3, "bias": bias},
    ]
    for options in cases:
        q, k, v = leaves_of([(1, 20, 2, 16), (1, 37, 1, 16), (1, 37, 1, 16)], torch.float16)
        dout = torch.randn(1, 20, 2, 16).half()
        graded = [
            options[n].requires_grad_() for n in ("sinks", "bias", "alibi_slopes") if n in options
        ]
        results = []
        for backend in ("reference", "triton"):
            asked = {"return_lse": True, "return_weights": True, "backend": backend}
            out, *others = rocflash.attention(q, k, v, **options, **asked)
            results.append(
                [out.detach(), *others, *torch.autograd.grad(out, [q, k, v, *graded], dout)]
            )
        for label, x, y in zip(
            ("out", "lse", "weights", "dq", "dk", "dv", "extra"), *reversed(results)
        ):
            error = ((x.double() - y.double()).abs() / y.double().abs().clamp(min=1)).max().item()
            assert error < 4e-3, f"{options}: {label}: {error:.2e}"


def key_blocks() -> None:
    """Gradients of ring attention's blocks of keys, with the out and lse of all keys, add up to
    those of the whole.
    """
    torch.manual_seed(1)
    q, k, v, dout = (torch.randn(1, n, 1, 16).half() for n in (20, 48, 48, 20))
    for level in (0.0, -1e4):
        options = Options(*DEFAULTS)._replace(
            bias=torch.full((1, 1, 1, 1), level), backend=BACKENDS["triton"]
        )
        out, lse, _ = calls.forward(q, k, v, options)
        whole = calls.backward(dout, q, k, v, out, lse, options, (True,) * 3)
        blocks = [
            calls.backward(dout, q, k[:, part], v[:, part], out, lse, options, (True,) * 3)
            for part in (slice(0, 17), slice(17, 48))
        ]
        near(blocks[0][0] + blocks[1][0], whole[0])
        for n in (1, 2):
            near(torch.cat([x[n] for x in blocks], 1), whole[n])


def main() -> None:
    tiles.choices = lambda kernel, family, columns: [tiles.Tile(16, 32, 4, 1)]
    torch.manual_seed(0)
    options_one_by_one()
    functions_of_flash_attn()
    caches()
    large_scores()
    key_blocks()
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
