"""Proof that the FlashAttention-3 interface runs here, and on what.

`python -m prove_fa3 [device]` prints torch, the device and its architecture, the backend, and a forward (on the CPU
also a backward) held to the definition in double precision. On an MI300X `python -m prove_fa3_mi300x` is the same.
"""

from __future__ import annotations

import sys

import torch

import flash_attn_interface
import rocflash


def _device_words(device: str) -> tuple[str, str]:
    """(name, architecture) of the device that will compute."""
    if device == "cpu":
        first = rocflash.devices()[0]
        return first["name"], first["arch"]
    properties = torch.cuda.get_device_properties(device)
    arch = getattr(properties, "gcnArchName", f"sm_{properties.major}{properties.minor}")
    return properties.name, arch


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    name, arch = _device_words(device)
    print(f"torch:    {torch.__version__} (hip {torch.version.hip}, cuda {torch.version.cuda})")
    print(f"device:   {device}, {name}")
    print(f"arch:     {arch}")
    print(f"backend:  {rocflash.info()['backend']} ({rocflash.info()['why']})")
    print(f"symbol:   {rocflash.info()['backend_symbol']}")
    torch.manual_seed(0)
    shape = (2, 256, 8, 64)
    q, k, v = (torch.randn(shape).to(torch.bfloat16).requires_grad_() for _ in range(3))
    dout = torch.randn(shape).to(torch.bfloat16)
    with torch.set_grad_enabled(device == "cpu"):  # gradients are computed there only
        out = flash_attn_interface.flash_attn_func(*(x.to(device) for x in (q, k, v)), causal=True)
    exact = rocflash.attention(q, k, v, causal=True, backend="reference")
    found, expected = [out.cpu()], [exact]
    if device == "cpu":
        found += torch.autograd.grad(out, (q, k, v), dout)
        expected += torch.autograd.grad(exact, (q, k, v), dout)
    good = True
    for label, x, y in zip(("out", "dq", "dk", "dv"), found, expected):
        error = ((x - y).float().norm() / y.float().norm()).item()
        good &= error < 2**-7
        print(f"{label + ':':9} {tuple(x.shape)} relative error {error:.1e}")
    print("proved" if good else "NOT proved")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
