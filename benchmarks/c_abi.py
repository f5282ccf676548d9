"""Prepared calls of the C ABI: the cost of a call without Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref
from typing import Any


def _describe(x: Any, device: tuple[int, int]) -> Any:
    import torch

    from rocflash._arrays.exchange import DLTensor
    from rocflash._c import abi

    sizes = ctypes.c_int64 * x.dim()
    code = abi.DL_BFLOAT if x.dtype is torch.bfloat16 else abi.DL_FLOAT
    shape, strides = sizes(*x.shape), sizes(*x.stride())
    return DLTensor(
        x.data_ptr(), *device, x.dim(), code, 8 * x.element_size(), 1, shape, strides, 0
    )


def _device_of(x: Any) -> tuple[int, int]:
    import torch

    from rocflash._c import abi

    if x.device.type == "cpu":
        return abi.DL_CPU, 0
    return abi.DL_ROCM if torch.version.hip else abi.DL_CUDA, x.device.index or 0


def prepare(
    op: str, tensors: dict[str, Any], device: Any = None, planned: bool = False
) -> tuple[Callable[[], None], int]:
    """Forward (without backward) or backward as a call without arguments, and its workspace's
    bytes.

    `device`, by DLPack's numbers, is that of the tensors unless given; on a GPU, calls go to
    torch's current stream, or to the default one where torch does not know the device. `planned`:
    by a plan, which is never destroyed.
    """
    import torch

    from rocflash._c import abi

    problem, execution = abi.Problem(), abi.Execution()
    results = abi.BackwardTensors() if op == "backward" else abi.ForwardOutputs()
    for struct in (problem, results, execution):
        struct.struct_size = ctypes.sizeof(struct)
    there = tensors["q"].device
    device = device or _device_of(tensors["q"])
    described = {name: _describe(x, device) for name, x in tensors.items()}
    for name, x in described.items():
        setattr(problem if name in ("q", "k", "v") else results, name, ctypes.addressof(x))
    if device[0] == abi.DL_CPU:
        execution.num_threads = torch.get_num_threads()
    elif there.type != "cpu":
        execution.stream = torch.cuda.current_stream(there).cuda_stream
    library = abi.library()
    name = "rocflash_backward" if op == "backward" else "rocflash_infer"
    arguments = [byref(problem), byref(results), byref(execution)]
    needed = ctypes.c_size_t()
    status = getattr(library, f"{name}_workspace")(*arguments, byref(needed))
    if status:
        abi.raise_status(status)
    workspace = torch.empty(needed.value + 64, dtype=torch.uint8, device=there)
    execution.workspace = (workspace.data_ptr() + 63) // 64 * 64
    execution.workspace_size = needed.value
    function = getattr(library, name)
    alive = (tensors, described, workspace)
    if planned:
        create = getattr(library, name.replace("rocflash_", "rocflash_plan_create_"))
        plan = ctypes.c_void_p()
        status = create(*arguments, byref(plan))
        if status:
            abi.raise_status(status)
        given = abi.PlanArguments()
        given.struct_size = ctypes.sizeof(given)
        for key, x in tensors.items():
            setattr(given, key, x.data_ptr())
        for key in ("stream", "workspace", "workspace_size"):
            setattr(given, key, getattr(execution, key))
        function, arguments = library.rocflash_plan_run, [plan, byref(given)]

    def call(_: Any = alive) -> None:
        status = function(*arguments)
        if status:
            abi.raise_status(status)

    return call, needed.value
