"""Proof that the FlashAttention-3 interface runs here, and on what: `python -m flash_attn_3.prove [device]`.

Prints torch, the device and its architecture, the backend's symbol, then holds forward and gradients to the definition
in double precision. Without a device it takes a GPU where torch has one. `check` is its short form, forward alone.
test_fa3.py and prove_fa3_mi300x.py, at the root of the repository, are these two.
"""

from __future__ import annotations

import argparse
import sys
from typing import Optional

import torch
from torch import Tensor

import flash_attn_interface
import rocflash.prove

# As all tests of the project: at most so many times the error of plain attention in the same dtype.
FORWARD, GRADIENTS = 2.0, 3.0
DTYPE = torch.bfloat16


def chosen_device(arguments: Optional[list[str]] = None) -> str:
    """What the command line names, else a GPU where there is one."""
    words = argparse.ArgumentParser(description="Holds the FlashAttention-3 interface to the definition.")
    words.add_argument("device", nargs="?", help="cpu, cuda, cuda:1 ...; by default a GPU where torch has one")
    return rocflash.prove.chosen_device(words, words.parse_args(arguments).device)


def describe(device: str) -> dict[str, str]:
    """The lines that say what runs, by their titles."""
    if torch.device(device).type == "cpu":
        first = rocflash.devices()[0]
        name, arch = first["name"], f"none, a CPU ({first['arch']})"
    else:
        properties = torch.cuda.get_device_properties(device)
        name = properties.name
        arch = getattr(properties, "gcnArchName", "") or f"none, sm_{properties.major}{properties.minor}"
    told = rocflash.info()
    return {
        "torch version": str(torch.__version__),
        "device name": name,
        "device gfx arch": arch,
        "flash-attn backend symbol": told.get("backend_symbol", "rocflash_forward in librocflash.so"),
        "chosen because": told["why"],
    }


def _inputs(shape: tuple[int, ...]) -> list[Tensor]:
    """q, k, v and the gradient of out, the same on every device."""
    numbers = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=numbers).to(DTYPE) for _ in range(4)]


def _shares(device: str, shape: tuple[int, ...], gradients: bool) -> dict[str, float]:
    """Each result's error, as a share of what it may be."""
    *tensors, dout = _inputs(shape)

    def results(attend: object, where: str) -> list[Tensor]:
        there = [x.to(where).requires_grad_(gradients) for x in tensors]
        out = attend(*there)  # type: ignore[operator]
        assert out.shape == shape and out.dtype is DTYPE
        found = [out, *(torch.autograd.grad(out, there, dout.to(where)) if gradients else ())]
        return [x.detach().cpu().double() for x in found]

    def by(backend: str) -> object:
        return lambda *qkv: rocflash.attention(*qkv, causal=True, backend=backend)

    found = results(lambda *qkv: flash_attn_interface.flash_attn_func(*qkv, causal=True), device)
    exact, plain = results(by("reference"), "cpu"), results(by("plain"), "cpu")
    shares = {}
    for name, x, y, z in zip(("out", "dq", "dk", "dv"), found, exact, plain):
        allowed = (FORWARD if name == "out" else GRADIENTS) * (z - y).abs().max().item()
        shares[name] = (x - y).abs().max().item() / allowed
    return shares


def _held(shares: dict[str, float]) -> bool:
    return all(share <= 1 for share in shares.values())  # not so if one is NaN


def _report(device: str, shape: tuple[int, ...], gradients: bool) -> int:
    """Prints what runs, then how far its results are from the definition. 0 if all are right."""
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
        told = ", ".join(f"{name} {share:.2f}" for name, share in part.items())
        print(f"FA3 {title} {word} on {device}: {shape} {str(DTYPE)[6:]}, errors as shares of what is allowed: {told}")
    return int(not all(map(_held, parts.values())))


def check(device: str) -> int:
    """The minimal check: a forward."""
    return _report(device, (2, 128, 4, 64), gradients=False)


def prove(device: str) -> int:
    """The proof: a forward and its gradients."""
    return _report(device, (2, 256, 8, 64), gradients=True)


if __name__ == "__main__":
    sys.exit(prove(chosen_device()))
