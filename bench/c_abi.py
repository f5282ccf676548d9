"""The C ABI with everything prepared beforehand: what a call costs without Python's part in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref
from typing import Any


def _describe(x: Any) -> Any:
    import torch

    from rocflash import _abi, _dlpack

    sizes = ctypes.c_int64 * x.dim()
    code = _abi.DL_BFLOAT if x.dtype is torch.bfloat16 else _abi.DL_FLOAT
    shape, strides = sizes(*x.shape), sizes(*x.stride())
    return _dlpack._DLTensor(
        x.data_ptr(), _abi.DL_CPU, 0, x.dim(), code, 8 * x.element_size(), 1, shape, strides, 0
    )


def prepare(op: str, tensors: dict[str, Any]) -> tuple[Callable[[], None], int]:
    """Forward (that no backward will follow) or backward as a call without arguments, and its workspace's bytes."""
    import torch

    from rocflash import _abi

    problem, execution = _abi.Problem(), _abi.Execution()
    results = _abi.BackwardTensors() if op == "backward" else _abi.ForwardOutputs()
    for struct in (problem, results, execution):
        struct.struct_size = ctypes.sizeof(struct)
    described = {name: _describe(x) for name, x in tensors.items()}
    for name, x in described.items():
        setattr(problem if name in ("q", "k", "v") else results, name, ctypes.addressof(x))
    execution.num_threads = torch.get_num_threads()
    library = _abi.library()
    name = "rocflash_backward" if op == "backward" else "rocflash_decode"
    arguments = [byref(problem), byref(results), byref(execution)]
    if op == "forward":
        arguments.insert(1, None)
    needed = ctypes.c_size_t()
    status = getattr(library, f"{name}_workspace")(*arguments, byref(needed))
    if status:
        _abi.raise_status(status)
    workspace = torch.empty(needed.value + 64, dtype=torch.uint8)
    execution.workspace = (workspace.data_ptr() + 63) // 64 * 64
    execution.workspace_size = needed.value
    function = getattr(library, name)
    alive = (tensors, described, workspace)

    def call(_: Any = alive) -> None:
        status = function(*arguments)
        if status:
            _abi.raise_status(status)

    return call, needed.value
