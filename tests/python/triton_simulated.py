"""The Triton kernels, compiled ahead of time, on the simulator. test_triton.py runs one process per
target.

`python triton_simulated.py` runs on the target that ROCFLASH_SIM_ARCH names, through HIP's driver
functions. The call path is that of the package, except that a launch is compiled for the target and
passed to the simulator, whose device memory is host memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import torch
from torch import Tensor

import rocflash
from rocflash._backends.triton import ahead, calls, launch, tiles

hip = ctypes.CDLL(os.environ["ROCFLASH_HIP_LIBRARY"])
hip.rocflashSimLastReport.restype = ctypes.c_char_p
ARCH = os.environ["ROCFLASH_SIM_ARCH"]
ran: list[str] = []


def check(status: int, what: str) -> None:
    assert status == 0, f"{what}: error {status}: {hip.rocflashSimLastReport().decode()}"


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        return [x for each in value for x in tensors_in(each)]
    return [value] if isinstance(value, Tensor) and value.numel() else []


def run(one: launch.Launch) -> None:
    """Replaces launch.run."""
    columns = max(one.constants.get("BLOCK_D", 0), one.constants.get("BLOCK_DV", 0))
    tile = tiles.choices(one.kernel, tiles.family_of(ARCH), columns)[0]
    made = ahead.compiled(one, tile, ARCH)
    lent = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in tensors_in(one.arguments)
    }
    for address, size in lent.items():
        check(hip.hipHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(size), 0), "register")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(hip.hipModuleLoadData(ctypes.byref(module), made.image), "load")
    check(hip.hipModuleGetFunction(ctypes.byref(function), module, made.name.encode()), "find")
    pointers = (ctypes.c_void_p * len(made.values))(*map(ctypes.addressof, made.values))
    sizes = (made.programs, 1, 1, made.threads, 1, 1, made.shared)
    check(
        hip.hipModuleLaunchKernel(function, *sizes, None, pointers, None), f"{one.kernel} on {ARCH}"
    )
    check(hip.hipDeviceSynchronize(), "wait")
    for address in lent:
        check(hip.hipHostUnregister(ctypes.c_void_p(address)), "unregister")
    ran.append(one.kernel)


def results(
    leaves: list[Tensor], dout: Tensor, backend: str, options: dict[str, Any]
) -> list[Tensor]:
    out, lse = rocflash.attention(*leaves, backend=backend, return_lse=True, **options)
    return [out.detach(), lse, *torch.autograd.grad(out, leaves, dout)]


def compare(
    name: str, heads: tuple[int, int], d: int, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """Forward within twice and gradients within three times the error of naive attention."""
    total_q, total_k = 70, 90
    packed = "cu_seqlens_q" in options
    shapes = ((total_q, heads[0], d), (total_k, heads[1], d), (total_k, heads[1], d))
    leaves = [torch.randn(*s if packed else (1, *s)).to(dtype).requires_grad_() for s in shapes]
    dout = torch.randn_like(leaves[0])
    exact, baseline, found = (
        results(leaves, dout, x, options) for x in ("reference", "naive", "triton")
    )
    for label, x, y, z in zip(("out", "lse", "dq", "dk", "dv"), found, exact, baseline):
        finite = y.isfinite()
        assert torch.equal(finite, x.isfinite()), f"{name}: {label}"
        error, bound = ((a.double() - y.double())[finite].abs().max().item() for a in (x, z))
        factor = 2 if label in ("out", "lse") else 3
        assert error <= factor * bound, (
            f"{name}: {label}: error {error:.2e}, naive attention {bound:.2e}"
        )


def main() -> None:
    calls._check_device, launch.run = lambda q: None, run
    torch.manual_seed(0)
    if ARCH == "gfx942":
        compare("causal", (2, 1), 64, torch.float16, {"causal": True})
    everything = {
        "window": (40, 9),
        "softcap": 6.0,
        "alibi_slopes": torch.rand(2),
        "sinks": torch.randn(2),
        "dropout_p": 0.2,
        "rng_state": torch.tensor([2**62 + 11, 2**40 + 3]),
        "cu_seqlens_q": torch.tensor([0, 21, 21, 70], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 5, 40, 90], dtype=torch.int32),
    }
    compare("everything", (2, 2), 40, torch.bfloat16, everything)
    assert len(ran) == (10 if ARCH == "gfx942" else 5), ran
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
