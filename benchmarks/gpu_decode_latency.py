"""Latency of one query over a short cache on a GPU, against torch's attention.

    python benchmarks/gpu_decode_latency.py [--keys 256,1024] [--batch 1] [--heads 32]
                                 [--kv-heads 8] [--head-dim 128] [--json FILE]

Microseconds per call, launch included. Eager: calls made one by one from Python, until the device
has finished all of them. Captured: 20 calls in a graph, timed with events. The sides alternate and
the median counts. torch's backends are selected once, outside the loop: `sdpa_kernel` around each
call would cost more than the call. For long caches there is `rocflash bench --op decode`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import rocflash
from flash_attn import flash_attn_with_kvcache
from rocflash.self_test import add_device_option, chosen_device

TOGETHER, IN_GRAPH, ROUNDS = 200, 20, 15
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention 2": SDPBackend.FLASH_ATTENTION}


class Way:
    """One way to compute it, within a context that is entered outside the loops."""

    def __init__(
        self,
        call: Callable[[], Any],
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.call, self.within = call, within
        self.eager: list[float] = []
        self.captured: list[float] = []
        self.graph = torch.cuda.CUDAGraph()

    def prepare(self) -> None:
        with self.within():
            self.call()
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph):
                for _ in range(IN_GRAPH):
                    self.call()

    def measure(self) -> None:
        with self.within():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(TOGETHER):
                self.call()
            torch.cuda.synchronize()
            self.eager.append((time.perf_counter() - begin) / TOGETHER * 1e6)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.graph.replay()
        events[0].record()
        self.graph.replay()
        events[1].record()
        torch.cuda.synchronize()
        self.captured.append(events[0].elapsed_time(events[1]) / IN_GRAPH * 1e3)


def offers(tensors: list[torch.Tensor], grouped: bool, backend: SDPBackend) -> bool:
    """Whether torch computes this call with a backend."""
    try:
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(*tensors, enable_gqa=grouped)
    except RuntimeError:
        return False
    return True


def ways(device: str, b: int, h: int, hk: int, d: int, keys: int) -> dict[str, Way]:
    q = torch.randn(b, 1, h, d, dtype=torch.bfloat16, device=device)
    k, v = torch.randn(2, b, keys, hk, d, dtype=torch.bfloat16, device=device).unbind()
    used = torch.full((b,), keys, dtype=torch.int32, device=device)
    transposed = [x.transpose(1, 2).contiguous() for x in (q, k, v)]

    def torchs() -> torch.Tensor:
        return F.scaled_dot_product_attention(*transposed, enable_gqa=h != hk)

    found = {
        "rocflash.decode": Way(lambda: rocflash.decode(q, k, v, want_lse=False)),
        "... with cache_seqlens": Way(
            lambda: rocflash.decode(q, k, v, cache_seqlens=used, want_lse=False)
        ),
        "flash_attn_with_kvcache": Way(lambda: flash_attn_with_kvcache(q, k, v)),
        "... with cache_seqlens ": Way(
            lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=used)
        ),
        "torch, its own choice": Way(torchs),
    }
    for name, backend in BACKENDS.items():
        if not offers(transposed, h != hk, backend):  # ROCm's torch has no cuDNN
            print(f"torch has no {name} for this", file=sys.stderr)
            continue
        found[f"torch, {name}"] = Way(torchs, lambda backend=backend: sdpa_kernel(backend))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_device_option(parser)
    parser.add_argument("--keys", default="256,1024")
    for name, value in (("batch", 1), ("heads", 32), ("kv-heads", 8), ("head-dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json")
    given = parser.parse_args()
    device = chosen_device(parser, given)
    if not device.startswith("cuda"):
        parser.error(
            f"device is {device!r}; this benchmark times a GPU: hip:N (or rocm:N) or cuda:N"
        )
    torch.cuda.set_device(torch.device(device).index or 0)
    warnings.simplefilter("ignore")
    rows = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: bf16, us per call")
    with torch.no_grad():
        for keys in map(int, given.keys.split(",")):
            all_ways = ways(device, given.batch, given.heads, given.kv_heads, given.head_dim, keys)
            for way in all_ways.values():
                way.prepare()
            for _ in range(ROUNDS):
                for way in all_ways.values():
                    way.measure()
            for name, way in all_ways.items():
                eager, captured = map(statistics.median, (way.eager, way.captured))
                print(f"{keys:7} keys  {name:26} eager {eager:7.1f}  captured {captured:6.2f}")
                rows.append({"keys": keys, "way": name, "eager_us": eager, "captured_us": captured})
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
