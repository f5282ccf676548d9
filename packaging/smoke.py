"""Uses an installed flash_attn as its users do: run by test_wheel.sh with the folder that it must come from."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import torch

import flash_attn
import flash_attn_2_cuda
import rocflash


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in double precision, step by step."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def main(place: Path) -> None:
    for module in (flash_attn, flash_attn_2_cuda, rocflash):
        assert Path(module.__file__).is_relative_to(place), (
            f"{module.__file__} is not below {place}"
        )
    version = importlib.metadata.version("flash-attn")
    assert flash_attn.__version__ == version, (flash_attn.__version__, version)
    print(f"flash_attn {version}")

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 33, 4, 64, requires_grad=True) for _ in range(3))
    out = flash_attn.flash_attn_func(q, k, v, causal=True)
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    wanted = exact(q, k, v)
    wanted_gradients = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    for name, x, y in zip(
        ("out", "dq", "dk", "dv"), (out, *gradients), (wanted, *wanted_gradients)
    ):
        error = (x - y).abs().max().item()
        assert error < 1e-4, f"{name} is off by {error}"
    print("CPU: forward and backward agree with double precision")

    raw = flash_attn_2_cuda.fwd(q, k, v, None, None, 0.0, 64**-0.5, True, -1, -1, 0.0, False, None)
    assert torch.equal(raw[0], out), "flash_attn_2_cuda.fwd differs from flash_attn_func"
    print("flash_attn_2_cuda: the same bits")

    told = subprocess.run(
        [sys.executable, "-I", "-m", "rocflash._command", "info"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert rocflash.info()["version"] in told.stdout, told.stdout
    print(f"GPU kernels: {' '.join(t['arch'] for t in rocflash.targets()) or 'none'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
