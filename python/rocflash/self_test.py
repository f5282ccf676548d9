"""Self-test of attention on this machine: `python -m rocflash.self_test [device] [--backend NAME]`.

Prints which backend runs and why. Then compares forward and gradients with the double-precision
reference, option by option. Needs torch. Exits with 1 if a result exceeds its bound. The device is
auto (the default: a GPU if torch has one, else the CPU), cpu, hip:N (or rocm:N), cuda:N, or
sim:gfx942 for the simulator; the backend is the default one unless one is named. What a backend
rejects is printed with its message, and does not count as passed.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch import Tensor

import rocflash

from ._c import device_names
from ._command import as_command as as_command  # exported

# The error bound of the project: at most this many times the error of naive attention in the same
# dtype.
FORWARD, GRADIENTS = 2.0, 3.0
# Draws of a case that exceeds its bound; the bound then applies to the root mean square of all
# draws.
DRAWS = 16

CASES: dict[str, dict[str, Any]] = {
    "no options": {},
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
    "head dimension 40": {"d": 40},
    "head dimension 33": {"d": 33, "causal": True},
    "head dimension 128": {"d": 128, "causal": True},
    "head dimension 256": {"d": 256},
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
    with running_on(device) as torch_device:
        there = [x.detach().to(torch_device).requires_grad_() for x in tensors]
        placed: dict[str, Any] = {
            n: x.to(torch_device) if isinstance(x, Tensor) and n != "rng_state" else x
            for n, x in options.items()
        }
        out = rocflash.attention(*there, backend=backend, **placed)
        gradients = torch.autograd.grad(out, there, dout.to(torch_device))
        return [x.detach().cpu() for x in (out, *gradients)]


def _errors(
    case: dict[str, Any], dtype: torch.dtype, backend: str, device: str
) -> tuple[list[float], list[float]]:
    """Errors of out and the gradients, and their bounds, for one draw of inputs."""
    tensors, options = _inputs(case, dtype)
    dout = torch.randn(*tensors[0].shape[:-1], tensors[2].shape[-1]).to(dtype)
    found = _results(tensors, options, backend, dout, device)
    exact = _results(tensors, options, "reference", dout)
    baseline = _results(tensors, options, "naive", dout)
    errors = [_worst(x, y) for x, y in zip(found, exact)]
    allowed = [_worst(x, y) for x, y in zip(baseline, exact)]
    # Errors below two f32 roundings do not count.
    return errors, [
        FORWARD * allowed[0] + 1e-6,
        *(GRADIENTS * x + 1e-6 for x in allowed[1:]),
    ]


def _root_mean_square(draws: list[list[float]]) -> list[float]:
    return [math.sqrt(sum(x * x for x in column) / len(draws)) for column in zip(*draws)]


def _compare(
    case: dict[str, Any], dtype: torch.dtype, backend: str, device: str
) -> tuple[list[float], list[float], bool]:
    """(errors, bounds, passed) of one draw or, if it exceeds its bound, of all draws."""
    errors, allowed = _errors(case, dtype, backend, device)
    if all(e <= a for e, a in zip(errors, allowed)):
        return errors, allowed, True
    draws = [(errors, allowed), *(_errors(case, dtype, backend, device) for _ in range(DRAWS - 1))]
    errors, allowed = (_root_mean_square(list(each)) for each in zip(*draws))
    return errors, allowed, all(e <= a for e, a in zip(errors, allowed))


def self_test(device: str = "auto", backend: Optional[str] = None) -> bool:
    """Prints the results; True if all supported cases pass. `device` as on the command line."""
    device = resolve_device(device)
    backend = rocflash.backend() if backend is None else backend
    with rocflash.use_backend(backend):
        print(rocflash.info())
    print(f"{'':18}{'dtype':>10}{'out':>10}{'allowed':>10}{'gradients':>11}{'allowed':>10}")
    good, passed = True, 0
    dtypes = [torch.float32, torch.float16, torch.bfloat16]
    for name, case in CASES.items():
        for dtype in list(dtypes):
            torch.manual_seed(0)
            line = f"{name:18}{str(dtype)[6:]:>10}"
            try:
                errors, allowed, held = _compare(case, dtype, backend, device)
            except rocflash.Unsupported as refusal:
                print(f"{line}  refused: {refusal}")
                if str(refusal).startswith("q has dtype"):
                    dtypes.remove(dtype)
                continue
            good &= held
            passed += 1
            worst = max(range(1, 4), key=lambda n: errors[n] / allowed[n])
            line += (
                f"{errors[0]:10.1e}{allowed[0]:10.1e}{errors[worst]:11.1e}{allowed[worst]:10.1e}"
            )
            print(line + ("" if held else "  OFF"), flush=True)
    good &= passed > 0
    print(f"passed, {passed} cases" if good else "FAILED")
    return good


@contextmanager
def running_on(device: str) -> Iterator[str]:
    """The torch device to allocate on, for a device of `chosen_device`. Within the block of
    sim:ARCH, calls on CPU tensors run on the simulated GPU."""
    if not device.startswith("sim:"):
        yield device
        return
    from ._torch.simulated import on_simulator

    with on_simulator():
        yield "cpu"


def _warn_about_unused_gpus() -> None:
    for node in ("/dev/kfd", "/dev/nvidiactl"):
        if os.path.exists(node):
            print(
                f"rocflash: device auto uses the CPU although {node} exists: this torch "
                f"({torch.__version__}) finds no "
                "GPU; `python -m rocflash doctor` says why, and device cpu omits this message",
                file=sys.stderr,
            )


def _open(device: str) -> None:
    """Raises RuntimeError if torch cannot allocate on a GPU."""
    torch.empty(1, device=device)


def resolve_device(given: Optional[str] = None) -> str:
    """The torch device of a device's name: auto (also None), cpu, hip:N or rocm:N, cuda:N. For
    sim:ARCH, starts the simulator and returns the name. Raises rocflash.Error if the device is not
    available."""
    name = device_names.parse("auto" if given is None else given)
    if name.kind == "auto":
        if torch.cuda.is_available():
            return "cuda"
        _warn_about_unused_gpus()
        return "cpu"
    if name.kind == "sim":
        device_names.start_simulator(name.arch)
        if not any(
            d["type"] == "rocm" and d["arch"].startswith(name.arch) for d in rocflash.devices()
        ):
            why = next(d["reason"] for d in rocflash.drivers() if d["name"] == "hip")
            raise rocflash.Unsupported(
                f"device is {given!r}, but the simulator has no such device: {why}"
            )
        return str(given)
    if name.kind == "cpu":
        return "cpu"
    if name.kind == "hip" and not torch.version.hip:
        raise rocflash.Unsupported(
            f"device is {given!r}, but this torch ({torch.__version__}) is not ROCm's; install one "
            "from "
            "https://download.pytorch.org/whl/rocm6.4 or a newer index"
        )
    device = "cuda" if name.index is None else f"cuda:{name.index}"
    try:
        _open(device)
    except (RuntimeError, AssertionError) as error:
        raise rocflash.Unsupported(
            f"device is {given!r}, but torch says: {str(error).splitlines()[0]}"
        ) from error
    return device


def add_device_option(words: argparse.ArgumentParser) -> None:
    """Adds the device, as a positional argument and as --device; `chosen_device` reads it."""
    about = f"{device_names.ALLOWED}; default: auto, a GPU if torch has one, else the CPU"
    words.add_argument("device", nargs="?", metavar="DEVICE", help=about)
    words.add_argument("--device", dest="named_device", metavar="DEVICE", help="the same by name")


def chosen_device(words: argparse.ArgumentParser, given: Any = None) -> str:
    """The device of the command line: `given` is a name, or the arguments of a parser with
    `add_device_option`. If the device is not available, the command exits with a usage message."""
    if isinstance(given, argparse.Namespace):
        if given.device is not None and given.named_device not in (None, given.device):
            words.error(
                f"--device is {given.named_device!r}, but the device before it is "
                f"{given.device!r}; give one"
            )
        given = given.device if given.named_device is None else given.named_device
    try:
        return resolve_device(given)
    except rocflash.Error as error:
        words.error(str(error))


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m rocflash.self_test", description=__doc__)
    add_device_option(words)
    words.add_argument(
        "--backend", help="native, triton, ck, cpu, ...; as calls here use unless given"
    )
    given = words.parse_args()
    return 0 if self_test(chosen_device(words, given), given.backend) else 1


if __name__ == "__main__":
    sys.exit(as_command(main))
