"""Self-test of the FlashAttention-3 interface: `python -m flash_attn_3.self_test [--device auto]`.

Prints torch, the device and its architecture and the backend's symbol. Then compares forward and
gradients with the double-precision reference. The device is auto (a GPU if torch has one), cpu,
hip:N, cuda:N or sim:gfx942. `check` is the short form, forward alone. test_fa3.py and
prove_fa3_mi300x.py, at the root of the repository, run these two.
"""

from __future__ import annotations

import argparse
import sys
from typing import Optional

import torch
from torch import Tensor

import flash_attn_interface
import rocflash.self_test

# The error bound of the project: at most this many times the error of naive attention in the same
# dtype.
FORWARD, GRADIENTS = 2.0, 3.0
DTYPE = torch.bfloat16


def chosen_device(arguments: Optional[list[str]] = None) -> str:
    """The device of the command line; auto is a GPU if available."""
    words = argparse.ArgumentParser(
        description="Compares the FlashAttention-3 interface with the reference implementation."
    )
    rocflash.self_test.add_device_option(words)
    return rocflash.self_test.chosen_device(words, words.parse_args(arguments))


def describe(device: str) -> dict[str, str]:
    """Device, architecture and backend, by the titles of the lines."""
    if device.startswith("sim:"):
        name, arch = next((d["name"], d["arch"]) for d in rocflash.devices() if d["type"] == "rocm")
    elif torch.device(device).type == "cpu":
        first = rocflash.devices()[0]
        name, arch = first["name"], f"none, a CPU ({first['arch']})"
    else:
        properties = torch.cuda.get_device_properties(device)
        name = properties.name
        arch = (
            getattr(properties, "gcnArchName", "")
            or f"none, sm_{properties.major}{properties.minor}"
        )
    keywords = rocflash.info()
    return {
        "torch version": str(torch.__version__),
        "device name": name,
        "device gfx arch": arch,
        "flash-attn backend symbol": keywords.get(
            "backend_symbol", "rocflash_forward in librocflash.so"
        ),
        "chosen because": keywords["why"],
    }


def _inputs(shape: tuple[int, ...]) -> list[Tensor]:
    """q, k, v and the gradient of out, equal on all devices."""
    numbers = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=numbers).to(DTYPE) for _ in range(4)]


def _shares(device: str, shape: tuple[int, ...], gradients: bool) -> dict[str, float]:
    """The error of each result as a share of its bound."""
    *tensors, dout = _inputs(shape)

    def results(attend: object, where: str) -> list[Tensor]:
        with rocflash.self_test.running_on(where) as torch_device:
            there = [x.to(torch_device).requires_grad_(gradients) for x in tensors]
            out = attend(*there)  # type: ignore[operator]
            assert out.shape == shape and out.dtype is DTYPE
            dout_there = dout.to(torch_device)
            found = [out, *(torch.autograd.grad(out, there, dout_there) if gradients else ())]
            return [x.detach().cpu().double() for x in found]

    def by(backend: str) -> object:
        return lambda *qkv: rocflash.attention(*qkv, causal=True, backend=backend)

    found = results(
        lambda q, k, v: flash_attn_interface.flash_attn_func(q, k, v, causal=True), device
    )
    exact, baseline = results(by("reference"), "cpu"), results(by("naive"), "cpu")
    shares = {}
    for name, x, y, z in zip(("out", "dq", "dk", "dv"), found, exact, baseline):
        allowed = (FORWARD if name == "out" else GRADIENTS) * (z - y).abs().max().item()
        shares[name] = (x - y).abs().max().item() / allowed
    return shares


def _held(shares: dict[str, float]) -> bool:
    return all(share <= 1 for share in shares.values())  # not so if one is NaN


def _report(device: str, shape: tuple[int, ...], gradients: bool) -> int:
    """Prints device, backend and errors. Returns 0 if all errors are within their bounds."""
    for title, text in describe(device).items():
        print(f"{title}: {text}")
    try:
        shares = _shares(device, shape, gradients)
    except rocflash.Error as error:
        print(f"FA3 forward FAILED on {device}: {error}")
        return 1
    parts = {"forward": {"out": shares.pop("out")}, **({"backward": shares} if gradients else {})}
    for title, part in parts.items():
        word = "success" if _held(part) else "WRONG"
        keywords = ", ".join(f"{name} {share:.2f}" for name, share in part.items())
        print(
            f"FA3 {title} {word} on {device}: {shape} {str(DTYPE)[6:]}, errors as shares of what "
            f"is allowed: {keywords}"
        )
    return int(not all(map(_held, parts.values())))


def check(device: str) -> int:
    """The minimal check: forward."""
    return _report(device, (2, 128, 4, 64), gradients=False)


def self_test(device: str) -> int:
    """The full check: forward and gradients."""
    return _report(device, (2, 256, 8, 64), gradients=True)


if __name__ == "__main__":
    sys.exit(rocflash.self_test.as_command(lambda: self_test(chosen_device())))
