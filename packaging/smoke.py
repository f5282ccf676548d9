"""Smoke test of an installed flash_attn: run by test_wheel.sh with its site-packages."""

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


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Naive causal attention in double precision."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(mask, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def check_fa3(site: Path, out: torch.Tensor, *inputs: torch.Tensor) -> None:
    """Tests flash-attn-3 if it is installed; otherwise checks that its modules are absent."""
    installed = any(x.name == "flash-attn-3" for x in importlib.metadata.distributions(path=[site]))
    for name in ("flash_attn_3", "flash_attn_config", "flash_attn_interface"):
        assert (importlib.util.find_spec(name) is not None) == installed, name
    if not installed:
        print("flash_attn_3: not installed")
        return
    import flash_attn_3
    import flash_attn_3.flash_attn_interface as fa3

    assert Path(fa3.__file__).is_relative_to(site), fa3.__file__
    # transformers accepts the module only from a distribution of this name.
    assert importlib.metadata.packages_distributions()["flash_attn_interface"] == ["flash-attn-3"]
    version = importlib.metadata.version("flash-attn-3")
    assert flash_attn_3.__version__ == version and flash_attn_3.__rocflash__ == rocflash.__version__
    with torch.no_grad():
        assert torch.equal(fa3.flash_attn_func(*inputs, causal=True), out)
        raw = torch.ops.flash_attn_3.fwd(*inputs, is_causal=True)[0]
    assert torch.equal(raw, out), "torch.ops.flash_attn_3.fwd differs from flash_attn_func"
    print(f"flash_attn_3 {version}: bit-identical")


def check_fa4(site: Path, out: torch.Tensor, *inputs: torch.Tensor) -> None:
    """Tests flash-attn-4 if it is installed; otherwise checks that flash_attn has no `cute`."""
    installed = any(x.name == "flash-attn-4" for x in importlib.metadata.distributions(path=[site]))
    assert (importlib.util.find_spec("flash_attn.cute") is not None) == installed
    if not installed:
        print("flash_attn.cute: not installed")
        return
    import flash_attn.cute as fa4

    assert Path(fa4.__file__).is_relative_to(site), fa4.__file__
    # transformers accepts the package only if this distribution is among its owners.
    owners = importlib.metadata.packages_distributions()["flash_attn"]
    assert sorted(set(owners)) == ["flash-attn", "flash-attn-4"], owners
    version = importlib.metadata.version("flash-attn-4")
    assert fa4.__version__ == version and fa4.__rocflash__ == rocflash.__version__
    with torch.no_grad():
        assert torch.equal(fa4.flash_attn_func(*inputs, causal=True)[0], out)
    print(f"flash_attn.cute {version}: bit-identical")


def main(site: Path) -> None:
    for module in (flash_attn, flash_attn_2_cuda, rocflash):
        assert Path(module.__file__).is_relative_to(site), f"{module.__file__} is not in {site}"
    version = importlib.metadata.version("flash-attn")
    assert flash_attn.__version__ == version, (flash_attn.__version__, version)
    assert flash_attn.__rocflash__ == rocflash.__version__
    assert "rocflash" in importlib.metadata.metadata("flash-attn")["Summary"]
    print(f"flash_attn {version}")
    if version.endswith("triton"):
        # The rest of the test uses the library, because Triton may have no GPU here.
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
    expected = reference(q, k, v)
    expected_gradients = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for name, x, y in zip(
        ("out", "dq", "dk", "dv"), (out, *gradients), (expected, *expected_gradients)
    ):
        error = (x - y).abs().max().item()
        assert error < 1e-4, f"{name}: error {error}"
    print("CPU: forward and backward agree with double precision")

    raw = flash_attn_2_cuda.fwd(q, k, v, None, None, 0.0, 64**-0.5, True, -1, -1, 0.0, False, None)
    assert torch.equal(raw[0], out), "flash_attn_2_cuda.fwd differs from flash_attn_func"
    print("flash_attn_2_cuda: bit-identical")

    check_fa3(site, out.detach(), q, k, v)
    check_fa4(site, out.detach(), q, k, v)

    command = subprocess.run(
        [sys.executable, "-I", "-m", "rocflash._command", "info"], capture_output=True, text=True
    )
    assert command.returncode == 0, command.stderr
    assert rocflash.info()["version"] in command.stdout, command.stdout
    line = f"flash-attn {version}: {importlib.metadata.metadata('flash-attn')['Summary']}"
    assert line in command.stdout and line in str(rocflash.info()), command.stdout
    print(f"GPU kernels: {' '.join(t['arch'] for t in rocflash.targets()) or 'none'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
