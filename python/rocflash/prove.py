"""Shows that attention is computed right here: `python -m rocflash.prove [device] [--backend NAME]`.

Prints what would run and why, then holds forward and gradients to the definition in double precision, option by
option. Needs torch. Exits with 1 if anything is off. The device is cpu (the default) or cuda; the backend is the one that
calls use here unless one is named. What a backend refuses is printed as its words, and is not counted as proved.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any, Optional

import torch
from torch import Tensor

import rocflash

# As the project's tests: at most so many times the error of plain attention in the same dtype.
FORWARD, GRADIENTS = 2.0, 3.0
# A case that is over its bound is drawn again so often, and judged by the root mean square of all draws.
DRAWS = 16

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (17, 5)},
    "grouped heads": {"hk": 2},
    "one head of keys": {"hk": 1, "causal": True},
    "softcap": {"softcap": 20.0},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "mask": {"mask": True},
    "bias": {"bias": True},
    "chunks": {"attention_chunk": 32},
    "dropout": {"dropout_p": 0.2},
    "packed": {"packed": True, "causal": True},
    "head size 40": {"d": 40},
    "head size 33": {"d": 33, "causal": True},
    "head size 128": {"d": 128, "causal": True},
    "head size 256": {"d": 256},
}
_SQ, _SK, _HEADS = 97, 113, 4


def _worst(x: Tensor, y: Tensor) -> float:
    return (x.double() - y.double()).abs().max().item()


def _inputs(case: dict[str, Any], dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Any]]:
    options = dict(case)
    hk, d = options.pop("hk", _HEADS), options.pop("d", 64)
    shapes = ((2, _SQ, _HEADS, d), (2, _SK, hk, d), (2, _SK, hk, d))
    tensors = [torch.randn(s).to(dtype) for s in shapes]
    if options.pop("packed", False):
        tensors = [x.flatten(0, 1) for x in tensors]
        options["cu_seqlens_q"] = torch.tensor([0, 30, 2 * _SQ], dtype=torch.int32)
        options["cu_seqlens_k"] = torch.tensor([0, 90, 2 * _SK], dtype=torch.int32)
    if options.pop("alibi", False):
        options["alibi_slopes"] = torch.rand(_HEADS)
    if options.pop("sinks", False):
        options["sinks"] = torch.randn(_HEADS)
    if options.pop("mask", False):
        options["mask"] = torch.rand(2, 1, _SQ, _SK) > 0.3
    if options.pop("bias", False):
        options["bias"] = torch.randn(1, _HEADS, _SQ, _SK)
    if "dropout_p" in options:
        options["rng_state"] = torch.tensor([1, 2])
    return [x.requires_grad_() for x in tensors], options


def _results(
    tensors: list[Tensor], options: dict[str, Any], backend: str, dout: Tensor, device: str = "cpu"
) -> list[Tensor]:
    """Out, and the gradients of q, k and v."""
    there = [x.detach().to(device).requires_grad_() for x in tensors]
    placed = {
        n: x.to(device) if isinstance(x, Tensor) and n != "rng_state" else x for n, x in options.items()
    }
    out = rocflash.attention(*there, backend=backend, **placed)
    gradients = torch.autograd.grad(out, there, dout.to(device))
    return [x.detach().cpu() for x in (out, *gradients)]


def _errors(
    case: dict[str, Any], dtype: torch.dtype, backend: str, device: str
) -> tuple[list[float], list[float]]:
    """Errors of out and the gradients, and what is allowed, for one draw of inputs."""
    tensors, options = _inputs(case, dtype)
    dout = torch.randn(*tensors[0].shape[:-1], tensors[2].shape[-1]).to(dtype)
    found = _results(tensors, options, backend, dout, device)
    exact = _results(tensors, options, "reference", dout)
    plain = _results(tensors, options, "plain", dout)
    errors = [_worst(x, y) for x, y in zip(found, exact)]
    allowed = [_worst(x, y) for x, y in zip(plain, exact)]
    # Two roundings of f32 are nothing to count.
    return errors, [
        FORWARD * allowed[0] + 1e-6,
        *(GRADIENTS * x + 1e-6 for x in allowed[1:]),
    ]


def _root_mean_square(draws: list[list[float]]) -> list[float]:
    return [math.sqrt(sum(x * x for x in column) / len(draws)) for column in zip(*draws)]


def _judge(
    case: dict[str, Any], dtype: torch.dtype, backend: str, device: str
) -> tuple[list[float], list[float], bool]:
    """(errors, allowed, held), of one draw or, where that is over its bound, of all."""
    errors, allowed = _errors(case, dtype, backend, device)
    if all(e <= a for e, a in zip(errors, allowed)):
        return errors, allowed, True
    draws = [(errors, allowed), *(_errors(case, dtype, backend, device) for _ in range(DRAWS - 1))]
    errors, allowed = (_root_mean_square(list(each)) for each in zip(*draws))
    return errors, allowed, all(e <= a for e, a in zip(errors, allowed))


def prove(device: str = "cpu", backend: Optional[str] = None) -> bool:
    """Prints the proof; True if everything that was not refused holds."""
    backend = rocflash.backend() if backend is None else backend
    with rocflash.use_backend(backend):
        print(rocflash.info())
    print(f"{'':18}{'dtype':>10}{'out':>10}{'allowed':>10}{'gradients':>11}{'allowed':>10}")
    good, proved = True, 0
    dtypes = [torch.float32, torch.float16, torch.bfloat16]
    for name, case in CASES.items():
        for dtype in list(dtypes):
            torch.manual_seed(0)
            line = f"{name:18}{str(dtype)[6:]:>10}"
            try:
                errors, allowed, held = _judge(case, dtype, backend, device)
            except rocflash.Unsupported as refusal:
                print(f"{line}  refused: {refusal}")
                if str(refusal).startswith("q: dtype"):
                    dtypes.remove(dtype)
                continue
            good &= held
            proved += 1
            worst = max(range(1, 4), key=lambda n: errors[n] / allowed[n])
            line += f"{errors[0]:10.1e}{allowed[0]:10.1e}{errors[worst]:11.1e}{allowed[worst]:10.1e}"
            print(line + ("" if held else "  OFF"), flush=True)
    good &= proved > 0
    print(f"proved, {proved} cases" if good else "NOT proved")
    return good


def chosen_device(words: argparse.ArgumentParser, given: Optional[str]) -> str:
    """The device that a command is given, else a GPU where torch has one. Where torch cannot put a tensor on it, the
    command ends with a usage message."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if given is None else given
    try:
        if torch.empty(1, device=device).device.type in ("cpu", "cuda"):
            return device
        why = "no such kernels"
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
    words.error(f"device: {device!r} ({why}); it must be cpu or, where torch has a GPU, cuda")


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m rocflash.prove", description=__doc__)
    words.add_argument("device", nargs="?", default="cpu")
    words.add_argument("--backend", help="native, triton, ck, cpu, ...; as calls here use unless given")
    given = words.parse_args()
    device = chosen_device(words, given.device)
    return 0 if prove(device, given.backend) else 1


if __name__ == "__main__":
    sys.exit(main())
