"""Shows that the library computes attention here: `python -m rocflash.prove`.

Prints what would run and why, then holds forward and gradients to the definition in double precision,
option by option. Needs torch. Exits with 1 if anything is off. On a GPU (`python -m rocflash.prove
cuda`) it is forward in the dtypes that GPUs take.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

import rocflash

# As the project's tests: at most so many times the error of plain attention in the same dtype.
FORWARD, GRADIENTS = 2.0, 3.0

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (17, 5)},
    "grouped heads": {"hk": 2},
    "softcap": {"softcap": 20.0},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "mask": {"mask": True},
    "chunks": {"attention_chunk": 32},
    "dropout": {"dropout_p": 0.2},
    "head size 40": {"d": 40},
}


def _worst(x: Tensor, y: Tensor) -> float:
    return (x.double() - y.double()).abs().max().item()


def _inputs(case: dict[str, Any], dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Any]]:
    options = dict(case)
    h, hk, d = 4, options.pop("hk", 4), options.pop("d", 64)
    shapes = ((2, 97, h, d), (2, 113, hk, d), (2, 113, hk, d))
    tensors = [torch.randn(s).to(dtype).requires_grad_() for s in shapes]
    if options.pop("alibi", False):
        options["alibi_slopes"] = torch.rand(h)
    if options.pop("sinks", False):
        options["sinks"] = torch.randn(h)
    if options.pop("mask", False):
        options["mask"] = torch.rand(2, 1, 97, 113) > 0.3
    if "dropout_p" in options:
        options["rng_state"] = torch.tensor([1, 2])
    return tensors, options


def _moved(x: Any, device: str) -> Any:
    return x.to(device) if isinstance(x, Tensor) else x


def _results(
    tensors: list[Tensor], options: dict[str, Any], backend: str, dout: Tensor, device: str = "cpu"
) -> list[Tensor]:
    """Out, and on the CPU the gradients of q, k and v."""
    there = [x.to(device) for x in tensors]
    placed = {n: x if n == "rng_state" else _moved(x, device) for n, x in options.items()}
    with torch.set_grad_enabled(device == "cpu"):
        out = rocflash.attention(*there, backend=backend, **placed)
    gradients = [] if device != "cpu" else torch.autograd.grad(out, tensors, dout)
    return [out.detach().cpu(), *gradients]


def prove(device: str = "cpu") -> bool:
    """Prints the proof; True if everything holds."""
    print(rocflash.info())
    gradients = device == "cpu"
    titles = f"{'gradients':>11}{'allowed':>10}" if gradients else ""
    print(f"{'':16}{'dtype':>10}{'out':>10}{'allowed':>10}{titles}")
    good = True
    for name, case in CASES.items():
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            if dtype is torch.float32 and device != "cpu":
                continue
            torch.manual_seed(0)
            tensors, options = _inputs(case, dtype)
            dout = torch.randn(2, 97, 4, tensors[2].shape[-1]).to(dtype)
            exact = _results(tensors, options, "reference", dout)
            plain = _results(tensors, options, "plain", dout)
            found = _results(tensors, options, "auto", dout, device)
            errors = [_worst(x, y) for x, y in zip(found, exact)]
            # Two roundings of f32 are nothing to count.
            bounds = [_worst(x, y) for x, y in zip(plain, exact)]
            bounds = [bounds[0] * FORWARD + 1e-6, *(b * GRADIENTS + 1e-6 for b in bounds[1:])]
            held = all(e <= b for e, b in zip(errors, bounds))
            good &= held
            line = f"{name:16}{str(dtype)[6:]:>10}{errors[0]:10.1e}{bounds[0]:10.1e}"
            if gradients:
                worst = max(range(1, 4), key=lambda n: errors[n] / bounds[n])
                line += f"{errors[worst]:11.1e}{bounds[worst]:10.1e}"
            print(line + ("" if held else "  OFF"))
    print("proved" if good else "NOT proved")
    return good


if __name__ == "__main__":
    sys.exit(0 if prove(sys.argv[1] if len(sys.argv) > 1 else "cpu") else 1)
