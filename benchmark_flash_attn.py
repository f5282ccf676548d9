"""The build guide's benchmark: flash_attention_amd against standard attention, b 2, h 8, d 64, causal, f32, 128 to 4096 tokens.

    python benchmark_flash_attn.py [device] [--seq-lens 128 256 ...] [--dtype float32] [--num-runs 10] [--no-causal]

Memory is the peak of one forward pass with its inputs: on a GPU by torch's allocator, on a CPU by the process's peak resident memory.
Where neither can be read it is computed, and the table says so.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from flash_attention_amd import flash_attn_func
from rocflash.prove import chosen_device

MIB = 2**20


def standard_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Materialises scores and weights, as a model without flash attention does."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Tensor], device: torch.device, runs: int) -> float:
    """The median of `runs`, after half as many to warm up."""
    times = []
    for run in range(-(runs // 2), runs):
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        if run >= 0:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def resident(what: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if not found:
        raise OSError(f"/proc/self/status has no {what}")
    return int(found[1]) * 1024


def measured_memory(call: Callable[[], Tensor], inputs: list[Tensor]) -> tuple[int, str]:
    """The peak of a call in bytes, inputs included, and who measured it."""
    device = inputs[0].device
    held = sum(x.nbytes for x in inputs)
    if device.type != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        wait(device)
        return torch.cuda.max_memory_allocated(device) - before + held, "torch's allocator"
    ctypes.CDLL(None).malloc_trim(
        0
    )  # what earlier calls left is given back, so that it counts again
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    call()
    return max(0, resident("VmHWM") - before) + held, "the process's peak"


def memory(call: Callable[[], Tensor], inputs: list[Tensor], tables: int) -> tuple[int, str]:
    """As `measured_memory`; where nothing can be read, inputs, output and `tables` of scores are added up."""
    try:
        return measured_memory(call, inputs)
    except (OSError, AttributeError):
        q, k, _ = inputs
        scores = q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1] * q.element_size()
        return sum(x.nbytes for x in inputs) + q.nbytes + tables * scores, "computed"


def benchmark(inputs: list[Tensor], causal: bool, runs: int) -> dict[str, float | str]:
    flash = partial(flash_attn_func, *inputs, causal=causal)
    standard = partial(standard_attention, *inputs, causal=causal)
    device = inputs[0].device
    with torch.no_grad():
        flash_seconds, standard_seconds = (
            seconds(call, device, runs) for call in (flash, standard)
        )
        flash_memory, how = memory(flash, inputs, tables=0)
        standard_memory, _ = memory(standard, inputs, tables=2)
        difference = (flash() - standard()).abs().max().item()
    return {
        "flash_time": flash_seconds * 1e3,
        "standard_time": standard_seconds * 1e3,
        "speedup": standard_seconds / flash_seconds,
        "flash_memory": flash_memory / MIB,
        "standard_memory": standard_memory / MIB,
        "memory_reduction": standard_memory / flash_memory,
        "memory_by": how,
        "max_diff": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "device", nargs="?", help="default: cuda (also ROCm's) where torch has it, else cpu"
    )
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[128 << n for n in range(6)])
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--num-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--num-runs", type=int, default=10)
    parser.add_argument("--no-causal", action="store_true")
    given = parser.parse_args()
    device = chosen_device(parser, given.device)
    mask = "not causal" if given.no_causal else "causal"
    print(
        f"{device}, {given.dtype}, batch {given.batch_size}, heads {given.num_heads}, head size {given.head_dim}, {mask}"
    )
    rows = []
    for length in given.seq_lens:
        print(f"Benchmarking sequence length: {length}", flush=True)
        torch.manual_seed(0)
        shape = (given.batch_size, length, given.num_heads, given.head_dim)
        dtype = getattr(torch, given.dtype)
        inputs = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
        row = benchmark(inputs, not given.no_causal, given.num_runs)
        rows.append((length, row))
        print(f"  Flash Attention: {row['flash_time']:.2f} ms, {row['flash_memory']:.1f} MiB")
        print(
            f"  Standard Attention: {row['standard_time']:.2f} ms, {row['standard_memory']:.1f} MiB"
        )
        print(f"  Speedup: {row['speedup']:.2f}x")
        print(f"  Memory Reduction: {row['memory_reduction']:.2f}x ({row['memory_by']})")
        print(f"  Max Difference: {row['max_diff']:.6f}\n")
    print(f"Summary (memory: {', '.join(sorted({row['memory_by'] for _, row in rows}))}):")
    print("Sequence Length | Speedup  | Memory Reduction | Max Difference")
    print("----------------|----------|------------------|---------------")
    for length, row in rows:
        print(
            f"{length:15} | {row['speedup']:7.2f}x | {row['memory_reduction']:15.2f}x | {row['max_diff']:14.6f}"
        )


if __name__ == "__main__":
    main()
