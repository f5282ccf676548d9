#!/usr/bin/env python3
"""The overhead of a call from Python: tiny problems, interleaved with torch's.

    python benchmarks/call_overhead.py [--dtype bf16] [--seqlen 1] [--rounds 40] [--long-way]
        [--device auto] [--peer fa2=DIRECTORY] [--peer fa3=DIRECTORY]

Prints microseconds, the best of many rounds. "library" is the call of the C ABI with prepared
arguments, "plan" is rocflash_plan_run; "floor" is an autograd function that only allocates its
results. --long-way disables the fast path, as with versions of torch that do not support it.

On a GPU it is the time of the host until a call is queued: the device is only synchronized between
rounds. "launch" is one kernel of torch, mostly the driver's share of a call. --peer measures
upstream's flash_attn (fa2) or flash_attn_interface (fa3) in a process of its own, whose packages
are in the directory, for example one that `pip install --target DIRECTORY` filled. --device
sim:gfx942 runs on the simulator, without torch, as a functional test; its times are not those of a
GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as cpu_vs_torch.py

import c_abi
import torch
import torch.nn.functional as F

PEERS = {"fa2": "flash_attn", "fa3": "flash_attn_interface"}
_measures_peer = "--measure-peer" in sys.argv  # then other packages have these names
if not _measures_peer:
    import rocflash
    from flash_attn import (
        flash_attn_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_with_kvcache,
    )
    from rocflash._torch import fast
    from rocflash.self_test import add_device_option, chosen_device

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
    """The call of the C ABI on problems of x's shape."""
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
    interfaces: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
        "rocflash.attention": (rocflash.attention, ours),
        "torch": (F.scaled_dot_product_attention, theirs),
        "floor": (Floor.apply, ours),
    }
    forward, backward = {}, {}
    for name, (function, inputs) in interfaces.items():
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
    cache = [torch.randn(1, CACHE + seqlen, HEADS, HEAD_DIM, device=device).to(dtype) for _ in "kv"]
    used = torch.tensor([CACHE], device=device).int()
    tensors = dict(zip(("q", "k", "v", "out"), (q, k, v, torch.empty_like(q))))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = flash_attn_func(*leaves)
    calls = {
        "launch": lambda: small.add_(1),
        "library": c_abi.prepare("forward", tensors)[0],
        "plan": c_abi.prepare("forward", tensors, planned=True)[0],
        "rocflash.attention": lambda: rocflash.attention(q, k, v),
        "flash_attn_func": lambda: flash_attn_func(q, k, v),
        "qkvpacked": lambda: flash_attn_qkvpacked_func(qkv),
        "varlen": lambda: flash_attn_varlen_func(*packed, cu, cu, seqlen, seqlen),
        "kvcache": lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=used),
        "kvcache, int": lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=CACHE),
        "gradients wanted": lambda: flash_attn_func(*leaves),
        "backward": lambda: torch.autograd.grad(out, leaves, q, retain_graph=True),
        "torch": lambda: F.scaled_dot_product_attention(a, b, c),
    }
    show(f"{torch.cuda.get_device_name(device)}", best(calls, rounds, 50, torch.cuda.synchronize))


def measure_peer(
    peer: str, seqlen: int, dtype: torch.dtype, rounds: int, device: str
) -> dict[str, float]:
    """The same calls of another package."""
    from importlib import import_module

    functions = import_module(PEERS[peer])
    q, k, v = (torch.randn(1, seqlen, HEADS, HEAD_DIM, device=device).to(dtype) for _ in "qkv")
    packed, cu = (q[0], k[0], v[0]), torch.tensor([0, seqlen], device=device).int()
    cache = [torch.randn(1, CACHE + seqlen, HEADS, HEAD_DIM, device=device).to(dtype) for _ in "kv"]
    used = torch.tensor([CACHE], device=device).int()
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = functions.flash_attn_func(*leaves)
    calls = {
        "flash_attn_func": lambda: functions.flash_attn_func(q, k, v),
        "varlen": lambda: functions.flash_attn_varlen_func(*packed, cu, cu, seqlen, seqlen),
        "kvcache": lambda: functions.flash_attn_with_kvcache(q, *cache, cache_seqlens=used),
        "gradients wanted": lambda: functions.flash_attn_func(*leaves),
        "backward": lambda: torch.autograd.grad(out, leaves, q, retain_graph=True),
    }
    finish = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    return best(calls, rounds, 50, finish)


def show_peer(name: str, directory: str, device: str, arguments: argparse.Namespace) -> None:
    own = [
        "--dtype",
        arguments.dtype,
        "--seqlen",
        str(arguments.seqlen),
        "--rounds",
        str(arguments.rounds),
    ]
    command = [sys.executable, __file__, "--measure-peer", name, "--device", device, *own]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": directory}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"call_overhead.py: {name} in {directory} failed:\n{done.stderr}")
    show(f"{name} of {directory}", json.loads(done.stdout.splitlines()[-1]))


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
    if _measures_peer:
        parser.add_argument("--device")
    else:
        add_device_option(parser)
    parser.add_argument("--peer", action="append", default=[], metavar="{fa2,fa3}=DIRECTORY")
    parser.add_argument("--measure-peer", choices=PEERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    peers = [x.partition("=") for x in arguments.peer]
    for name, _, directory in peers:
        if name not in PEERS or not Path(directory).is_dir():
            parser.error(f"--peer is {name}={directory}; it must be fa2 or fa3, and a directory")
    if arguments.measure_peer:
        found = measure_peer(
            arguments.measure_peer,
            arguments.seqlen,
            DTYPES[arguments.dtype],
            arguments.rounds,
            arguments.device,
        )
        print(json.dumps(found))
        return
    device = chosen_device(parser, arguments)
    simulated = device.startswith("sim:")
    if simulated and peers:
        parser.error("--peer measures no simulated device")
    if arguments.long_way:
        fast._bind = None
    torch.manual_seed(0)
    dtype = "f16" if simulated else arguments.dtype
    print(f"{device}, {dtype}, b 1, h {HEADS}, d {HEAD_DIM}, {arguments.seqlen} tokens, us")
    if simulated:
        on_simulator(arguments.seqlen, arguments.rounds)
        return
    if device != "cpu":
        on_gpu(arguments.seqlen, DTYPES[arguments.dtype], arguments.rounds, device)
    else:
        for measure in (without_gradients, with_gradients):
            measure(arguments.seqlen, DTYPES[arguments.dtype], arguments.rounds)
    for name, _, directory in peers:
        show_peer(name, directory, device, arguments)


if __name__ == "__main__":
    main()
