"""rocflash.attention over arrays in a simulated AMD GPU's memory: run by test_simulated_gpu.py.

A separate process, since the driver is chosen once in a process. The arrays are as small as the
array API allows: memory by hipMalloc, a DLPack capsule, `empty`.
"""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import numpy as np

import rocflash
from rocflash._arrays import exchange
from rocflash._c import abi, frames

hip = ctypes.CDLL(os.environ["ROCFLASH_HIP_LIBRARY"])
_DTYPES = {
    np.dtype("float16"): (abi.DL_FLOAT, 16),
    np.dtype("float32"): (abi.DL_FLOAT, 32),
    np.dtype("float64"): (abi.DL_FLOAT, 64),
    np.dtype("int32"): (abi.DL_INT, 32),
    np.dtype("bool"): (abi.DL_BOOL, 8),
}


class HipArray:
    """An array on a device, after NumPy's."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: int = 0) -> None:
        self.shape, self.dtype, self.device = tuple(shape), np.dtype(dtype), device
        self.bytes = int(np.prod(shape)) * self.dtype.itemsize
        pointer = ctypes.c_void_p()
        assert hip.hipSetDevice(device) == 0
        assert hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(self.bytes)) == 0
        assert hip.hipSetDevice(0) == 0
        self.data = pointer.value
        self._kept: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (abi.DL_ROCM, self.device)

    def __dlpack__(self, **_: Any) -> Any:
        sizes = (ctypes.c_int64 * len(self.shape))(*self.shape)
        managed = exchange.DLManagedTensor()
        tensor = managed.dl_tensor
        tensor.data, tensor.device_type, tensor.device_id = self.data, abi.DL_ROCM, self.device
        (tensor.code, tensor.bits), tensor.lanes = _DTYPES[self.dtype], 1
        tensor.ndim = len(self.shape)
        tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        self._kept.append((sizes, managed))  # a capsule without a deleter: ours to keep
        return exchange._capsule_new(ctypes.addressof(managed), b"dltensor", None)

    def __array_namespace__(self) -> Any:
        def empty(shape: Any, dtype: Any, device: int) -> HipArray:
            return HipArray(shape, dtype, device)

        return SimpleNamespace(empty=empty, float32=np.float32)

    def memory_as_tensor(self) -> Any:
        """A torch tensor over the same memory: a simulated device's is the host's. For addresses
        only.
        """
        import torch

        memory = (ctypes.c_byte * self.bytes).from_address(self.data)
        return torch.frombuffer(memory, dtype=getattr(torch, self.dtype.name)).view(self.shape)

    def numpy(self) -> np.ndarray:
        host = np.empty(self.shape, self.dtype)
        address = ctypes.c_void_p(host.ctypes.data)
        size = ctypes.c_size_t(self.bytes)
        assert hip.hipMemcpy(address, ctypes.c_void_p(self.data), size, 2) == 0
        return host


class Doubled(HipArray):
    """Every second column of an array that has each twice: the last stride is 2."""

    def __init__(self, host: np.ndarray) -> None:
        twice = np.repeat(host, 2, axis=-1)
        super().__init__(twice.shape, twice.dtype)
        address, size = ctypes.c_void_p(twice.ctypes.data), ctypes.c_size_t(self.bytes)
        assert hip.hipMemcpy(ctypes.c_void_p(self.data), address, size, 1) == 0
        self._host, self.shape = host, host.shape
        self._steps = [n // twice.itemsize for n in twice.strides[:-1]] + [2]

    def __dlpack__(self, **kind: Any) -> Any:
        capsule = super().__dlpack__(**kind)
        steps = (ctypes.c_int64 * len(self.shape))(*self._steps)
        managed = self._kept[-1][1]
        managed.dl_tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
        self._kept.append(steps)
        return capsule

    def __array_namespace__(self) -> Any:
        return SimpleNamespace(ascontiguousarray=lambda x: to_gpu(x._host))


def to_gpu(host: np.ndarray, device: int = 0) -> HipArray:
    host = np.ascontiguousarray(host)
    there = HipArray(host.shape, host.dtype, device)
    address = ctypes.c_void_p(host.ctypes.data)
    assert hip.hipMemcpy(ctypes.c_void_p(there.data), address, ctypes.c_size_t(there.bytes), 1) == 0
    return there


def random_arrays(sq: int, sk: int, d: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = ((2, sq, 4, d), (2, sk, 2, d), (2, sk, 2, d))
    return [rng.standard_normal(s).astype("float16") for s in shapes]


def check(device: int, arrays: list[np.ndarray], options: dict[str, Any]) -> None:
    """GPU results are within f16 accuracy of the reference, and dropout equals that of the CPU."""
    asked = {"return_lse": True, "return_weights": True}
    here = rocflash.attention(*arrays, backend="reference", **options, **asked)
    there = {n: to_gpu(x, device) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    found = rocflash.attention(*(to_gpu(x, device) for x in arrays), **there, **asked)
    for name, x, y in zip(("out", "lse", "weights"), found, here):
        assert isinstance(x, HipArray) and x.device == device, name
        got, want = x.numpy().astype("float64"), y.astype("float64")
        finite = np.isfinite(want)
        assert np.array_equal(finite, np.isfinite(got)), name
        assert np.abs(got[finite] - want[finite]).max(initial=0) < 4e-3, name
        if name == "weights":
            assert np.array_equal(got < 0, want < 0), "dropout"


def gradients_are_queried_first() -> None:
    """The query of gradient support before forward, for a device that torch does not have."""
    import torch

    from rocflash._torch import calls, plan

    plan._GPU_TYPE = abi.DL_ROCM
    device = torch.device("cuda", 0)
    calls._query_gradients(torch.float16, device, 64, 40)
    calls._query_gradients(torch.bfloat16, device, 64, 64, ("sinks", torch.float32))
    try:
        calls._query_gradients(torch.float64, device, 64, 40)
        raise AssertionError("gradients were not refused")
    except rocflash.Unsupported as refusal:
        assert "q has dtype f64" in str(refusal), refusal


def gradients_by_autograd() -> None:
    import torch

    from rocflash._torch.simulated import on_simulator

    torch.manual_seed(0)
    shapes = ((1, 20, 2, 64), (1, 33, 1, 64), (1, 33, 1, 64))
    inputs = [torch.randn(s).half().requires_grad_() for s in shapes]
    sinks = torch.randn(2).requires_grad_()

    def gradients(**how: Any) -> Any:
        out = rocflash.attention(*inputs, causal=True, sinks=sinks, **how)
        return torch.autograd.grad(out.float().square().sum(), (*inputs, sinks))

    wanted = gradients(backend="reference")
    with on_simulator() as launches:
        for deterministic in (False, True):
            for x, y in zip(gradients(deterministic=deterministic), wanted):
                assert (x - y).abs().max() < 2e-2, (x - y).abs().max()
    assert len(launches) == 4, "forward and backward, twice"


def rotated(arrays: list[Any], interleaved: bool, in_place: bool) -> np.ndarray:
    """x rotated by the library on the arrays' device: x, cos, sin, cu_seqlens and first, None where
    absent.
    """
    x = arrays[0]
    on_gpu = isinstance(x, HipArray)
    out = x if in_place else to_gpu(np.zeros(x.shape, x.dtype)) if on_gpu else np.zeros_like(x)
    frame = frames.Frame(6)
    words: list[Any] = []
    for array in [*arrays, out]:
        if array is None:
            words.append(None)
            continue
        strides = tuple(int(np.prod(array.shape[n + 1 :])) for n in range(len(array.shape)))
        data = array.data if on_gpu else array.ctypes.data
        device = (abi.DL_ROCM if on_gpu else abi.DL_CPU, 0)
        words.append(frame.describe(_DTYPES[array.dtype], device, array.shape, strides, data))
    frame.rotate(tuple(words[:-1]), interleaved, words[-1])
    return out.numpy() if on_gpu else out


def rotation() -> None:
    """The append kernel: bitwise equal to the CPU, in place or not, packed or not."""
    rng = np.random.default_rng(2)
    for dtype in ("float16", "float32"):
        x = rng.standard_normal((2, 37, 3, 72)).astype(dtype)
        tables = [rng.standard_normal((60, 20)).astype(t) for t in (dtype, dtype)]
        lengths = [np.array(values, "int32") for values in ([0, 30, 70], [5, 11])]
        for arrays in (
            [x, *tables, None, lengths[1]],
            [x.reshape(-1, 3, 72), *tables, *lengths],
            [x, *tables, None, None],
        ):
            for interleaved in (False, True):
                want = rotated(
                    [None if a is None else a.copy() for a in arrays], interleaved, False
                )
                for in_place in (False, True):
                    there = [None if a is None else to_gpu(a) for a in arrays]
                    found = rotated(there, interleaved, in_place)
                    used = 70 if arrays[3] is not None else len(want)  # packed rows of no sequence
                    assert np.array_equal(found[:used], want[:used]), (dtype, interleaved, in_place)
                    if in_place and arrays[3] is not None:
                        assert np.array_equal(found[used:], arrays[0][used:])


def main() -> None:
    found = [d for d in rocflash.devices() if d["type"] == "rocm"]
    assert len(found) == 2, found
    assert rocflash.drivers()[0]["in_use"]
    rng = np.random.default_rng(1)
    baseline = random_arrays(70, 90, 64)
    check(0, baseline, {})
    check(1, baseline, {"causal": True})
    check(
        0,
        random_arrays(33, 40, 40),
        {
            "causal": True,
            "window": (30, 0),
            "softcap": 5.0,
            "mask": rng.random((2, 1, 33, 40)) > 0.2,
            "bias": rng.standard_normal((1, 4, 1, 40)).astype("float32"),
            "alibi_slopes": rng.random(4).astype("float32"),
            "sinks": rng.random(4).astype("float32"),
            "seqused_k": np.array([40, 17], "int32"),
            "dropout_p": 0.2,
            "rng_state": (5, 6),
        },
    )
    q = to_gpu(baseline[0].astype("float64"))
    try:
        rocflash.attention(q, q, q)
        raise AssertionError("f64 was not refused")
    except rocflash.Unsupported as refusal:
        assert str(refusal).startswith("q has dtype f64; GPU kernels take "), refusal
    there = [to_gpu(x) for x in baseline]
    want = rocflash.attention(*there).numpy()
    found = rocflash.attention(there[0], Doubled(baseline[1]), Doubled(baseline[2])).numpy()
    assert np.array_equal(found, want), "copied"
    empty = [to_gpu(np.zeros((0, 5, 2, 16), "float16")) for _ in "qkv"]
    assert rocflash.attention(*empty).shape == (0, 5, 2, 16)
    packed = [to_gpu(x.reshape(-1, *x.shape[2:])) for x in baseline]
    cu = to_gpu(np.array([0, 70, 140], "int32"))
    try:
        rocflash.attention(*packed, cu_seqlens_q=cu, cu_seqlens_k=cu)
        raise AssertionError("max_seqlen_q was not required")
    except rocflash.InvalidArgument as refusal:
        assert str(refusal).startswith("max_seqlen_q is 0; "), refusal
    rotation()
    if os.environ["ROCFLASH_SIM_ARCH"] == "gfx942":
        gradients_are_queried_first()
        gradients_by_autograd()
    print("ok")


if __name__ == "__main__":
    main()
