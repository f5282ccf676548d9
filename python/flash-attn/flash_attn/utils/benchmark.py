"""Timing of a function's forward and backward with torch's timer, for benchmark scripts.

Autocast is that of the device of the first tensor, and memory is a GPU's.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

__all__ = [
    "benchmark_all",
    "benchmark_backward",
    "benchmark_combined",
    "benchmark_forward",
    "benchmark_fwd_bwd",
    "benchmark_memory",
    "pytorch_profiler",
]


class _Call:
    """A function with its arguments, optionally under autocast."""

    def __init__(
        self, fn: Any, inputs: tuple[Any, ...], named: dict[str, Any], amp: bool, dtype: Any
    ) -> None:
        self.fn, self.inputs, self.named = fn, inputs, named
        self.tensors = [x for x in inputs if isinstance(x, Tensor)]
        self.device = self.tensors[0].device.type if self.tensors else "cuda"
        self.amp, self.dtype = amp, dtype

    def forward(self) -> Any:
        with torch.autocast(device_type=self.device, dtype=self.dtype, enabled=self.amp):
            return self.fn(*self.inputs, **self.named)

    def output(self) -> Tensor:
        found = self.forward()
        return found[0] if type(found) is tuple else found

    def backward(self, y: Tensor, grad: Tensor) -> None:
        """Clears gradients first, since accumulation would cost time."""
        for x in self.tensors:
            x.grad = None
        y.backward(grad, retain_graph=True)

    def gradient(self, y: Tensor, grad: Optional[Tensor]) -> Tensor:
        if grad is not None and grad.shape != y.shape:
            raise RuntimeError(
                f"grad has shape {tuple(grad.shape)}; it must be that of the output, "
                f"{tuple(y.shape)}"
            )
        return torch.randn_like(y) if grad is None else grad


def _timed(step: Any, repeats: int, title: str, verbose: bool) -> tuple[Timer, Any]:
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    if verbose:
        print(title)
    measurement = timer.timeit(repeats)
    if verbose:
        print(measurement)
    return timer, measurement


def benchmark_forward(
    fn: Any, *inputs: Any, repeats: int = 10, desc: str = "", verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16, **kwinputs: Any,
) -> tuple[Timer, Any]:  # fmt: skip
    """(timer, measurement) of fn(*inputs, **kwinputs)."""
    call = _Call(fn, inputs, kwinputs, amp, amp_dtype)
    return _timed(call.forward, repeats, f"{desc} - Forward pass", verbose)


def benchmark_backward(
    fn: Any, *inputs: Any, grad: Optional[Tensor] = None, repeats: int = 10, desc: str = "",
    verbose: bool = True, amp: bool = False,
    amp_dtype: torch.dtype = torch.float16, **kwinputs: Any,
) -> tuple[Timer, Any]:  # fmt: skip
    """(timer, measurement) of backward alone, from `grad` or random gradients."""
    call = _Call(fn, inputs, kwinputs, amp, amp_dtype)
    y = call.output()
    grad = call.gradient(y, grad)
    return _timed(lambda: call.backward(y, grad), repeats, f"{desc} - Backward pass", verbose)


def benchmark_combined(
    fn: Any, *inputs: Any, grad: Optional[Tensor] = None, repeats: int = 10, desc: str = "",
    verbose: bool = True, amp: bool = False,
    amp_dtype: torch.dtype = torch.float16, **kwinputs: Any,
) -> tuple[Timer, Any]:  # fmt: skip
    """(timer, measurement) of forward and backward together."""
    call = _Call(fn, inputs, kwinputs, amp, amp_dtype)
    grad = call.gradient(call.output(), grad)
    title = f"{desc} - Forward + Backward pass"
    return _timed(lambda: call.backward(call.output(), grad), repeats, title, verbose)


def benchmark_fwd_bwd(
    fn: Any, *inputs: Any, grad: Optional[Tensor] = None, **keywords: Any
) -> tuple[Any, Any]:
    """Forward and backward separately."""
    return benchmark_forward(fn, *inputs, **keywords), benchmark_backward(
        fn, *inputs, grad=grad, **keywords
    )


def benchmark_all(
    fn: Any, *inputs: Any, grad: Optional[Tensor] = None, **keywords: Any
) -> tuple[Any, Any, Any]:
    """Forward, backward, and both together."""
    return (
        *benchmark_fwd_bwd(fn, *inputs, grad=grad, **keywords),
        benchmark_combined(fn, *inputs, grad=grad, **keywords),
    )


def pytorch_profiler(
    fn: Any, *inputs: Any, trace_filename: Optional[str] = None, backward: bool = False,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16, cpu: bool = False, verbose: bool = True,
    **kwinputs: Any,
) -> None:  # fmt: skip
    """One run under torch's profiler after thirty warm-up runs; prints its table, and may write a
    trace.
    """
    call = _Call(fn, inputs, kwinputs, amp, amp_dtype)
    grad = call.gradient(call.output(), None) if backward else None

    def step() -> None:
        y = call.output()
        if grad is not None:
            call.backward(y, grad)

    for _ in range(30):
        step()
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU] * bool(cpu) + [kinds.CUDA] * torch.cuda.is_available()
    with torch.profiler.profile(
        activities=activities or [kinds.CPU], record_shapes=True, with_stack=True
    ) as profile:
        step()
    if verbose:
        print(profile.key_averages().table(row_limit=50))
    if trace_filename is not None:
        profile.export_chrome_trace(trace_filename)


def benchmark_memory(
    fn: Any, *inputs: Any, desc: str = "", verbose: bool = True, **kwinputs: Any
) -> float:
    """The most GPU memory that was allocated during one call, in GB (of 2^20 * 1000 bytes, as
    upstream counts).
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    fn(*inputs, **kwinputs)
    torch.cuda.synchronize()
    found = torch.cuda.max_memory_allocated() / (2**20 * 1000)
    if verbose:
        print(f"{desc} max memory: {found}GB")
    torch.cuda.empty_cache()
    return found
