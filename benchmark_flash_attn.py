"""The build guide's benchmark of flash_attention_amd against naive attention.

The defaults are b 2, h 8, d 64, causal, f32, 128 to 4096 tokens.

    python benchmark_flash_attn.py [--device auto] [--seq-lens 128 256 ...] [--dtype float32]
                                   [--num-runs 10] [--no-causal]

Memory is the peak of one forward pass including its inputs: from torch's allocator on a GPU, from
the process's peak resident memory on a CPU. If neither is available, memory is computed, and the
table says so.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from flash_attention_amd import flash_attn_func
from rocflash.self_test import add_device_option, as_command, chosen_device, running_on

MIB = 2**20


def naive_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Materializes scores and weights, as a model without flash attention does."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Tensor], device: torch.device, runs: int) -> float:
    """The median of `runs` calls, after half as many warm-up calls."""
    times = []
    for run in range(-(runs // 2), runs):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        if run >= 0:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def resident(name: str) -> int:
    """A field of /proc/self/status, VmRSS or VmHWM, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if not found:
        raise OSError(f"/proc/self/status has no {name}")
    return int(found[1]) * 1024


def measured_memory(call: Callable[[], Tensor], inputs: list[Tensor]) -> tuple[int, str]:
    """The peak memory of a call in bytes, including inputs, and its source."""
    device = inputs[0].device
    input_bytes = sum(x.nbytes for x in inputs)
    if device.type != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before + input_bytes, "torch's allocator"
    # Returns the memory of earlier calls to the system, so that the call's allocations count.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    call()
    return max(0, resident("VmHWM") - before) + input_bytes, "the process's peak"


def memory(
    call: Callable[[], Tensor], inputs: list[Tensor], score_matrices: int
) -> tuple[int, str]:
    """As `measured_memory`; if that fails, the sum of inputs, output and `score_matrices`."""
    try:
        return measured_memory(call, inputs)
    except (OSError, AttributeError):
        q, k, _ = inputs
        scores = q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1] * q.element_size()
        return sum(x.nbytes for x in inputs) + q.nbytes + score_matrices * scores, "computed"


def benchmark(inputs: list[Tensor], causal: bool, runs: int) -> dict[str, float | str]:
    flash = partial(flash_attn_func, *inputs, causal=causal)
    naive = partial(naive_attention, *inputs, causal=causal)
    device = inputs[0].device
    with torch.no_grad():
        flash_seconds, naive_seconds = (seconds(call, device, runs) for call in (flash, naive))
        flash_memory, source = memory(flash, inputs, score_matrices=0)
        naive_memory, _ = memory(naive, inputs, score_matrices=2)
        difference = (flash() - naive()).abs().max().item()
    return {
        "flash_time": flash_seconds * 1e3,
        "standard_time": naive_seconds * 1e3,
        "speedup": naive_seconds / flash_seconds,
        "flash_memory": flash_memory / MIB,
        "standard_memory": naive_memory / MIB,
        "memory_reduction": naive_memory / flash_memory,
        "memory_by": source,
        "max_diff": difference,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_device_option(parser)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[128 << n for n in range(6)])
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--num-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--num-runs", type=int, default=10)
    parser.add_argument("--no-causal", action="store_true")
    options = parser.parse_args()
    device = chosen_device(parser, options)
    mask = "not causal" if options.no_causal else "causal"
    print(
        f"{device}, {options.dtype}, batch {options.batch_size}, heads {options.num_heads}, head "
        f"dim {options.head_dim}, {mask}"
    )
    if device.startswith("sim:"):
        print("The simulator computes what the GPU computes; its times are not the GPU's.")
    rows = []
    for length in options.seq_lens:
        print(f"Benchmarking sequence length: {length}", flush=True)
        torch.manual_seed(0)
        shape = (options.batch_size, length, options.num_heads, options.head_dim)
        dtype = getattr(torch, options.dtype)
        with running_on(device) as torch_device:
            inputs = [torch.randn(shape, device=torch_device, dtype=dtype) for _ in range(3)]
            row = benchmark(inputs, not options.no_causal, options.num_runs)
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
            f"{length:15} | {row['speedup']:7.2f}x | {row['memory_reduction']:15.2f}x | "
            f"{row['max_diff']:14.6f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(as_command(main))
