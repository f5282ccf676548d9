#!/usr/bin/env python3
"""What a call from Python costs beside the computation: tiny problems against torch's, by turns.

    python bench/call_overhead.py [--dtype bf16] [--seqlen 1] [--rounds 40] [--long-way] [--device cuda]

Prints microseconds, the best of many rounds. "library" is the bare call of the C ABI with all its
arguments in place; "floor" is an autograd function that only makes its results. --long-way leaves out
the short cut for plain calls, as where torch does not offer what that needs.

On a GPU it is what the host spends until a call is queued: the device works meanwhile and is only waited
for between rounds. "launch" is one kernel of torch's, the driver's share of a call and little else. --device
simulated shows on the simulator that everything works (torch does not know it, so it is the bare call and
arrays), with ROCFLASH_HIP_LIBRARY naming it; its times are no GPU's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as cpu_vs_torch.py

import c_abi
import torch
import torch.nn.functional as F

import rocflash
from flash_attn import (
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from rocflash._torch import fast

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
HEADS, HEAD_DIM, CACHE = 8, 64, 64


class Floor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        ctx.save_for_backward(q, k, v)
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def library_call(op: str, x: Any) -> Callable[[], Any]:
    """The bare call of the C ABI on problems of x's shape."""
    names = ("q", "k", "v", "out") + (("dout", "dq", "dk", "dv") if op == "backward" else ())
    tensors = {name: torch.randn_like(x) for name in names}
    if op == "backward":
        tensors["lse"] = torch.zeros(x.shape[0], x.shape[2], x.shape[1])
    return c_abi.prepare(op, tensors)[0]


def best(
    calls: dict[str, Callable[[], Any]],
    rounds: int,
    repeats: int = 50,
    finish: Callable[[], Any] = lambda: None,
) -> dict[str, float]:
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            finish()
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            found[name] = min(found[name], (time.perf_counter() - begin) / repeats * 1e6)
            finish()
    return found


def show(title: str, found: dict[str, float]) -> None:
    print(f"{title}: " + ", ".join(f"{name} {us:.1f}" for name, us in found.items()), flush=True)


def without_gradients(seqlen: int, dtype: torch.dtype, rounds: int) -> None:
    qkv = torch.randn(1, seqlen, 3, HEADS, HEAD_DIM).to(dtype)
    q, k, v = (x.contiguous() for x in qkv.unbind(2))
    a, b, c = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    cache = [torch.randn(1, CACHE + seqlen, HEADS, HEAD_DIM).to(dtype) for _ in "kv"]
    used = torch.tensor([CACHE]).int()
    packed, cu = (q[0], k[0], v[0]), torch.tensor([0, seqlen]).int()
    calls = {
        "library": library_call("forward", q),
        "rocflash.attention": lambda: rocflash.attention(q, k, v),
        "flash_attn_func": lambda: flash_attn_func(q, k, v),
        "qkvpacked": lambda: flash_attn_qkvpacked_func(qkv),
        "varlen": lambda: flash_attn_varlen_func(*packed, cu, cu, seqlen, seqlen),
        f"kvcache of {CACHE}": lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=used),
        "torch": lambda: F.scaled_dot_product_attention(a, b, c),
    }
    show("forward", best(calls, rounds))


def with_gradients(seqlen: int, dtype: torch.dtype, rounds: int) -> None:
    shape = (1, seqlen, HEADS, HEAD_DIM)
    ours = [torch.randn(shape).to(dtype).requires_grad_() for _ in "qkv"]
    theirs = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in ours]
    faces: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
        "rocflash.attention": (rocflash.attention, ours),
        "torch": (F.scaled_dot_product_attention, theirs),
        "floor": (Floor.apply, ours),
    }
    forward, backward = {}, {}
    for name, (function, inputs) in faces.items():
        out = function(*inputs)
        dout = torch.randn(out.shape).to(dtype)
        forward[name] = lambda f=function, x=inputs: f(*x)
        backward[name] = lambda y=out, x=inputs, g=dout: torch.autograd.grad(
            y, x, g, retain_graph=True
        )
    show("forward, gradients wanted", best(forward, rounds))
    calls = {"library": library_call("backward", ours[0]), **backward}
    show("backward", best(calls, rounds))


def on_gpu(seqlen: int, dtype: torch.dtype, rounds: int, device: str) -> None:
    qkv = torch.randn(1, seqlen, 3, HEADS, HEAD_DIM, device=device).to(dtype)
    q, k, v = (x.contiguous() for x in qkv.unbind(2))
    a, b, c = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    packed, cu = (q[0], k[0], v[0]), torch.tensor([0, seqlen], device=device).int()
    small = torch.zeros(1, device=device)
    calls = {
        "launch": lambda: small.add_(1),
        "library": library_call("forward", q),
        "rocflash.attention": lambda: rocflash.attention(q, k, v),
        "flash_attn_func": lambda: flash_attn_func(q, k, v),
        "qkvpacked": lambda: flash_attn_qkvpacked_func(qkv),
        "varlen": lambda: flash_attn_varlen_func(*packed, cu, cu, seqlen, seqlen),
        "torch": lambda: F.scaled_dot_product_attention(a, b, c),
    }
    show(f"forward, {torch.cuda.get_device_name(device)}", best(calls, rounds, 50, torch.cuda.synchronize))


def on_simulator(seqlen: int, rounds: int) -> None:
    """f16, since NumPy, which makes the arrays of tests/python, has no bf16."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python"))
    import numpy
    from simulated_gpu import HipArray, to_gpu

    shape = (1, seqlen, HEADS, HEAD_DIM)
    rng = numpy.random.default_rng(0)
    host = [rng.standard_normal(shape).astype("float16") for _ in "qkv"]
    there = dict(zip("qkv", map(to_gpu, host)), out=HipArray(shape, "float16"))
    tensors = {name: x.memory_as_tensor() for name, x in there.items()}
    call = c_abi.prepare("forward", tensors, there["q"].__dlpack_device__())[0]
    inputs = [there[name] for name in "qkv"]
    calls = {"library": call, "rocflash.attention": lambda: rocflash.attention(*inputs)}
    show("forward, simulated", best(calls, rounds, 1))
    right = rocflash.attention(*host)
    for found in (there["out"].numpy(), rocflash.attention(*inputs).numpy()):
        numpy.testing.assert_allclose(found, right, rtol=0, atol=4e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--seqlen", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--long-way", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, cuda (also ROCm's), or simulated")
    arguments = parser.parse_args()
    if arguments.long_way:
        fast._bind = None
    torch.manual_seed(0)
    dtype = "f16" if arguments.device == "simulated" else arguments.dtype
    print(f"{dtype}, b 1, h {HEADS}, d {HEAD_DIM}, {arguments.seqlen} tokens, us")
    if arguments.device == "simulated":
        on_simulator(arguments.seqlen, arguments.rounds)
        return
    if arguments.device != "cpu":
        on_gpu(arguments.seqlen, DTYPES[arguments.dtype], arguments.rounds, arguments.device)
        return
    for measure in (without_gradients, with_gradients):
        measure(arguments.seqlen, DTYPES[arguments.dtype], arguments.rounds)


if __name__ == "__main__":
    main()
