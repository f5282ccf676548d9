"""torch's CPU tensors on the simulated AMD GPU, for self-tests: torch has no such device.

The simulated GPU's memory is the host's, so the tensors' memory is registered with it, not copied.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .._c import abi, frames
from . import fast, plan


class _Lender:
    """In place of the module torch in plan.py: registers what is allocated and what is lent."""

    def __init__(self, hip: Any) -> None:
        self._hip = hip
        self._lent: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *shape: Any, **kind: Any) -> Any:
        return self.lend(torch.empty(*shape, **kind))

    def lend(self, x: Any) -> Any:
        storage = x.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if size and address not in self._lent:
            self.check(
                self._hip.hipHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(size), 0)
            )
            self._lent[address] = storage  # kept, so that no other tensor gets its address
        return x

    def take_back(self) -> None:
        for address in self._lent:
            self.check(self._hip.hipHostUnregister(ctypes.c_void_p(address)))
        self._lent.clear()

    def wait(self) -> None:
        self.check(self._hip.hipDeviceSynchronize())

    @staticmethod
    def check(status: int) -> None:
        if status:
            raise RuntimeError(f"the simulator returned error {status}")


def _forget_plans() -> None:
    plan._latest.clear()
    plan._plan.cache_clear()


@contextmanager
def on_simulator() -> Iterator[list[Any]]:
    """Within the block, the library's calls on CPU tensors run on the simulated GPU.

    Yields a list that each launch is appended to. ROCFLASH_HIP_LIBRARY must name the simulator, as
    `device_names.start_simulator` has it.
    """
    lender = _Lender(ctypes.CDLL(os.environ["ROCFLASH_HIP_LIBRARY"]))
    launches: list[Any] = []
    run_frame, run_plan, run_planned = frames.Frame.run, plan.Plan.run, plan.Plan._run_planned
    device_of, stream_of, bind = plan._device_of, plan.current_stream, fast._bind

    def on_gpu(self: Any, *_: Any) -> None:
        run_frame(self, 0, lambda size: lender.empty(size, dtype=torch.uint8).data_ptr())
        lender.wait()
        launches.append(self)

    def planned_on_gpu(self: Any, *arguments: Any) -> None:
        run_planned(self, *arguments)
        lender.wait()
        launches.append(self)

    def with_lent(self: Any, tensors: list[Any]) -> None:
        for x in tensors:
            if x is not None:
                lender.lend(x)
        self._gpu = True  # a workspace by `empty`, on a stream
        run_plan(self, tensors)

    plan.torch, fast._bind = lender, None
    plan._device_of, plan.current_stream = lambda label, device: (abi.DL_ROCM, 0), lambda index: 0
    frames.Frame.run, plan.Plan.run = on_gpu, with_lent
    plan.Plan._run_planned = planned_on_gpu
    _forget_plans()
    try:
        yield launches
    finally:
        plan.torch, plan._device_of, fast._bind = torch, device_of, bind
        plan.current_stream, plan.Plan._run_planned = stream_of, run_planned
        frames.Frame.run, plan.Plan.run = run_frame, run_plan
        _forget_plans()
        lender.take_back()
