"""Measurements for the page: times and peak memory of attention with this library, with torch and
with naive attention.

CPU memory is that of a process: `python -m rocflash.report.measure` is a fresh process, which forks
one more per measurement.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

SIDES = ("rocflash", "torch", "standard")
OPERATIONS = ("forward", "training")
_SLICE = 2e-3  # minimum seconds per time slice of a side, so that reading the clock does not count


class Shape(NamedTuple):
    """b, h, d of a comparison; lengths vary."""

    batch: int
    heads: int
    head_dim: int
    dtype: str
    causal: bool = True

    def __str__(self) -> str:
        recorded = "causal" if self.causal else "not causal"
        return (
            f"batch {self.batch}, {self.heads} heads, head dimension {self.head_dim}, "
            f"{self.dtype}, {recorded}"
        )


def side(name: str, causal: bool) -> Callable[..., Any]:
    """A function of q, k, v (b, s, h, d)."""
    import torch
    import torch.nn.functional as F

    import rocflash

    def transposed(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *qkv: function(*(x.transpose(1, 2) for x in qkv)).transpose(1, 2)

    def naive(q: Any, k: Any, v: Any) -> Any:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        if causal:
            hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        return scores.softmax(-1) @ v

    if name == "rocflash":
        return lambda *qkv: rocflash.attention(*qkv, causal=causal)
    if name == "torch":
        return transposed(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal))
    return transposed(naive)


def call(name: str, operation: str, shape: Shape, length: int, device: str) -> Callable[[], Any]:
    """Attention on new tensors: forward, or forward and all gradients ("training")."""
    import torch

    size = (shape.batch, length, shape.heads, shape.head_dim)
    dtype = getattr(torch, shape.dtype)
    training = operation == "training"
    qkv = [torch.randn(size).to(device, dtype).requires_grad_(training) for _ in range(3)]
    dout = torch.randn(size).to(device, dtype)
    attend = side(name, shape.causal)

    def run() -> Any:
        out = attend(*qkv)
        return torch.autograd.grad(out, qkv, dout) if training else out

    return run


def _clock(device: str) -> Callable[[], float]:
    import torch

    if torch.device(device).type == "cpu":
        return time.perf_counter

    def waiting() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return waiting


def times(
    operation: str, shape: Shape, length: int, device: str, seconds: float
) -> dict[str, Optional[float]]:
    """The median time of a call per side, in seconds; None if out of memory. Sides alternate."""
    now = _clock(device)
    calls: dict[str, tuple[Callable[[], Any], int]] = {}
    for name in SIDES:
        try:
            run = call(name, operation, shape, length, device)
            run()
            start = now()
            run()
            calls[name] = run, max(1, min(100, int(_SLICE / max(now() - start, 1e-6))))
        except (MemoryError, RuntimeError) as error:
            if "memory" not in str(error).lower():
                raise
    found: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    while min(map(len, found.values())) < 3 or time.perf_counter() < end:
        for name, (run, count) in calls.items():
            start = now()
            for _ in range(count):
                run()
            found[name].append((now() - start) / count)
    return {name: statistics.median(found[name]) if name in found else None for name in SIDES}


# ------------------------------------------------------------------------------------------- memory


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def _peak_of_process(run: Callable[[], Any]) -> int:
    """The peak growth of the process in bytes during a call."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    run()
    return max(0, _status("VmHWM") - before)


def _in_forked_process(work: Callable[[], int]) -> Optional[int]:
    """The result of a function in a forked process; None if the process was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.write(write, str(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return int(text) if text else None


def _memory_of_cpu(operation: str, shape: Shape, lengths: list[int]) -> Iterator[dict[str, Any]]:
    for length in lengths:

        def work(name: str, n: int = length) -> int:
            call(name, operation, shape, 16, "cpu")()  # loads code, starts threads
            return _peak_of_process(call(name, operation, shape, n, "cpu"))

        yield {name: _in_forked_process(lambda name=name: work(name)) for name in SIDES}  # type: ignore[misc]


def _memory_of_gpu(
    operation: str, shape: Shape, lengths: list[int], device: str
) -> Iterator[dict[str, Any]]:
    import torch

    for length in lengths:
        found: dict[str, Optional[int]] = {}
        for name in SIDES:
            try:
                run = call(name, operation, shape, length, device)
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                run()
                torch.cuda.synchronize()
                found[name] = torch.cuda.max_memory_allocated() - before
            except torch.cuda.OutOfMemoryError:
                found[name] = None
        yield found


def memory(
    operation: str, shape: Shape, lengths: list[int], device: str
) -> list[dict[str, Optional[int]]]:
    """Peak bytes beyond the inputs, results included, per length and side; None if out of
    memory.
    """
    import torch

    if torch.device(device).type != "cpu":
        return list(_memory_of_gpu(operation, shape, lengths, device))
    given = json.dumps([operation, shape, lengths])
    done = subprocess.run(
        [sys.executable, "-m", "rocflash.report.measure", given], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"memory could not be measured: {done.stderr.strip().splitlines()[-1:]}")
    return list(json.loads(done.stdout))


if __name__ == "__main__":
    _operation, _shape, _lengths = json.loads(sys.argv[1])
    import torch  # noqa: F401  (once, before the forks)

    import rocflash  # noqa: F401

    print(json.dumps(list(_memory_of_cpu(_operation, Shape(*_shape), _lengths))))
