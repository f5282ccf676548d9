"""Uses an installed flash_attn as its users do: run by test_wheel.sh with the folder that it must come from."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import torch

import flash_attn
import flash_attn_2_cuda
import rocflash
from rocflash._c import choice


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in double precision, step by step."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def check_fa3(place: Path, out: torch.Tensor, *inputs: torch.Tensor) -> None:
    """flash-attn-3 where it is installed; and that nothing of it is there where it is not."""
    there = any(x.name == "flash-attn-3" for x in importlib.metadata.distributions(path=[place]))
    for name in ("flash_attn_3", "flash_attn_config", "flash_attn_interface"):
        assert (importlib.util.find_spec(name) is not None) == there, name
    if not there:
        print("flash_attn_3: not installed")
        return
    import flash_attn_3
    import flash_attn_3.flash_attn_interface as fa3

    assert Path(fa3.__file__).is_relative_to(place), fa3.__file__
    # transformers takes the module only from a distribution of this name.
    assert importlib.metadata.packages_distributions()["flash_attn_interface"] == ["flash-attn-3"]
    version = importlib.metadata.version("flash-attn-3")
    assert flash_attn_3.__version__ == version and flash_attn_3.__rocflash__ == rocflash.__version__
    with torch.no_grad():
        assert torch.equal(fa3.flash_attn_func(*inputs, causal=True), out)
        raw = torch.ops.flash_attn_3.fwd(*inputs, is_causal=True)[0]
    assert torch.equal(raw, out), "torch.ops.flash_attn_3.fwd differs from flash_attn_func"
    print(f"flash_attn_3 {version}: the same bits")


def main(place: Path) -> None:
    for module in (flash_attn, flash_attn_2_cuda, rocflash):
        assert Path(module.__file__).is_relative_to(place), (
            f"{module.__file__} is not below {place}"
        )
    version = importlib.metadata.version("flash-attn")
    assert flash_attn.__version__ == version, (flash_attn.__version__, version)
    assert flash_attn.__rocflash__ == rocflash.__version__
    assert "rocflash" in importlib.metadata.metadata("flash-attn")["Summary"]
    print(f"flash_attn {version}")
    if version.endswith("triton"):
        # Its default; what follows is computed by the library, since there may be no GPU for Triton.
        assert choice._built == "triton", choice._built
        assert any(x.startswith("triton") for x in importlib.metadata.requires("flash-attn"))
        print("default backend: triton")
        rocflash.set_backend("auto")
    else:
        assert choice._built == "", choice._built

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

    check_fa3(place, out.detach(), q, k, v)

    told = subprocess.run(
        [sys.executable, "-I", "-m", "rocflash._command", "info"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert rocflash.info()["version"] in told.stdout, told.stdout
    line = f"flash-attn {version}: The interface of flash_attn 2, served by rocflash"
    assert line in told.stdout and line in str(rocflash.info()), told.stdout
    print(f"GPU kernels: {' '.join(t['arch'] for t in rocflash.targets()) or 'none'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
