"""Arrays that speak DLPack (NumPy, JAX, CuPy, ...) to the library and back.

A DLPack capsule holds just what the C ABI takes, so inputs are passed as they are. Results on the
CPU are memory of ours, handed to the caller's own library by DLPack too; NumPy makes its own. Results
on a GPU are made by the caller's library, by the array API's `empty`; calls go to the default stream.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

from . import _abi, _frame
from ._errors import InvalidArgument, Unsupported

_TENSOR_OPTIONS = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "leftpad_k",
    "mask",
    "alibi_slopes",
    "bias",
    "sinks",
    "block_table",
    "cache_batch_idx",
)
_NUMBER_OPTIONS = (
    "max_seqlen_q",
    "max_seqlen_k",
    "causal",
    "window_left",
    "window_right",
    "attention_chunk",
    "softmax_scale",
    "softcap",
    "dropout_p",
    "deterministic",
    "num_splits",
    "num_threads",
    "backend",
)
_F32 = (_abi.DL_FLOAT, 32)
_NUMPY_NAMES = {_F32: "float32", (_abi.DL_FLOAT, 16): "float16", (_abi.DL_FLOAT, 64): "float64"}

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = (
    ctypes.c_void_p,
    [ctypes.py_object, ctypes.c_char_p],
)
_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype, _capsule_new.argtypes = (
    ctypes.py_object,
    [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
    ]


class _Input:
    """An argument, its capsule and the DLTensor inside."""

    def __init__(self, name: str, array: Any) -> None:
        if not hasattr(array, "__dlpack__"):
            raise TypeError(
                f"{name}: {type(array).__name__}; it must be a torch.Tensor or an array with "
                "__dlpack__, such as NumPy's"
            )
        is_negative = getattr(array, "is_neg", None)  # torch's __dlpack__ does not tell
        if is_negative is not None and is_negative():
            raise InvalidArgument(
                f"{name}: has torch's negative bit, which DLPack cannot express; it must be resolved "
                "(resolve_neg) before"
            )
        try:
            self.capsule = array.__dlpack__()  # its destructor gives the memory back
            self.address = _capsule_pointer(self.capsule, b"dltensor")
        except Exception as error:
            raise InvalidArgument(f"{name}: cannot be read by DLPack: {error}") from error
        self.tensor = _DLTensor.from_address(self.address)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[n] for n in range(self.tensor.ndim))

    @property
    def dtype(self) -> tuple[int, int]:
        return (self.tensor.code, self.tensor.bits)


class Result:
    """Memory for a result: 64-byte aligned, compact, exported once by DLPack."""

    _exported: dict[int, tuple[Any, ...]] = {}

    def __init__(self, shape: tuple[int, ...], dtype: tuple[int, int]) -> None:
        self.shape, self.dtype = shape, dtype
        size = math.prod(shape) * dtype[1] // 8
        self._memory = ctypes.create_string_buffer(size + 64)
        self.data = -(-ctypes.addressof(self._memory) // 64) * 64
        strides = [1] * len(shape)
        for n in range(len(shape) - 2, -1, -1):
            strides[n] = strides[n + 1] * shape[n + 1]
        self.strides = tuple(strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_abi.DL_CPU, 0)

    def __dlpack__(self, **_: Any) -> Any:
        ndim = len(self.shape)
        sizes = (ctypes.c_int64 * (2 * ndim))(*self.shape, *self.strides)
        managed = _DLManagedTensor()
        tensor = managed.dl_tensor
        tensor.data, tensor.device_type, tensor.ndim = self.data, _abi.DL_CPU, ndim
        (tensor.code, tensor.bits), tensor.lanes = self.dtype, 1
        at = ctypes.addressof(sizes)
        pointer = ctypes.POINTER(ctypes.c_int64)
        tensor.shape = ctypes.cast(at, pointer)
        tensor.strides = ctypes.cast(at + 8 * ndim, pointer)
        managed.deleter = _release
        address = ctypes.addressof(managed)
        Result._exported[address] = (self._memory, sizes, managed)
        return _capsule_new(address, b"dltensor", None)


@_Deleter
def _release(address: int) -> None:
    """The consumer is done: let go of the memory."""
    Result._exported.pop(address, None)


def _numpy() -> Any:
    return sys.modules.get("numpy")


class _GpuResult(_Input):
    """A result that the caller's own library made, where its input is."""

    def __init__(self, name: str, array: Any) -> None:
        super().__init__(name, array)
        self.array = array


class _Scratch:
    """Workspace on a GPU, from the library that q comes from."""

    def __init__(self, like: Any) -> None:
        self._like = like
        self._memory: _GpuResult | None = None

    def __call__(self, size: int) -> int:
        self._memory = _make_gpu_result("workspace", self._like, (-(-size // 4) + 16,), _F32)
        data = self._memory.tensor.data + self._memory.tensor.byte_offset
        return -(-data // 64) * 64


def _namespace(like: Any) -> Any:
    """The module that `like` comes from, as far as it can be told."""
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__()
    return sys.modules.get(type(like).__module__.partition(".")[0])


def _make_gpu_result(
    name: str, like: Any, shape: tuple[int, ...], dtype: tuple[int, int]
) -> _GpuResult:
    space = _namespace(like)
    if space is None or not hasattr(space, "empty"):
        raise Unsupported(
            f"q: {type(like).__name__} is on a GPU and comes from a library without the array "
            "API's `empty`, so a result of its kind cannot be made; pass torch tensors"
        )
    kind = space.float32 if dtype == _F32 else like.dtype
    return _GpuResult(name, space.empty(shape, dtype=kind, device=like.device))


def _make_result(
    name: str, like: Any, gpu: bool, shape: tuple[int, ...], dtype: tuple[int, int]
) -> Any:
    if gpu:
        return _make_gpu_result(name, like, shape, dtype)
    numpy = _numpy()
    if numpy is not None and isinstance(like, numpy.ndarray):
        return numpy.empty(shape, dtype=_NUMPY_NAMES[dtype])
    return Result(shape, dtype)


def _hand_over(like: Any, result: Any) -> Any:
    """The result as an array of the library that `like` comes from."""
    if isinstance(result, _GpuResult):
        return result.array
    if not isinstance(result, Result):
        return result
    space = _namespace(like)
    if space is None or not hasattr(space, "from_dlpack"):
        raise Unsupported(
            f"q: {type(like).__name__} comes from a library without from_dlpack, so a result of "
            "its kind cannot be made; pass torch tensors or NumPy arrays"
        )
    return space.from_dlpack(result)


def _set_result(frame: _frame.Frame, name: str, result: Any) -> None:
    if isinstance(result, _GpuResult):
        frame.set(_abi.ForwardOutputs, name, result.address)
        return
    if isinstance(result, Result):
        data, dtype, strides = result.data, result.dtype, result.strides
    else:
        data, dtype = result.ctypes.data, (_abi.DL_FLOAT, 8 * result.itemsize)
        strides = tuple(n // result.itemsize for n in result.strides)
    word = frame.describe(dtype, (_abi.DL_CPU, 0), result.shape, strides, data)
    frame.point(_frame.word_of(_abi.ForwardOutputs, name), word)


def _seed_and_offset(rng_state: Any) -> tuple[int, int]:
    try:
        seed, offset = (int(x) for x in rng_state)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"rng_state: {rng_state!r}; it must be two integers, seed and offset"
        ) from error
    return seed & (2**64 - 1), offset & (2**64 - 1)


def _set_numbers(frame: _frame.Frame, numbers: dict[str, Any], rng_state: Any) -> None:
    kinds = {"softcap": float, "dropout_p": float}
    for name in (
        "max_seqlen_q",
        "max_seqlen_k",
        "attention_chunk",
        "num_splits",
        "causal",
        "deterministic",
        "softcap",
        "dropout_p",
    ):
        value = _number(name, numbers[name], kinds.get(name, int))
        frame.set(_abi.Problem, name, value)
    if numbers["window_left"] != -1 or numbers["window_right"] != -1:
        frame.set_window(numbers["window_left"], numbers["window_right"])
    if numbers["softmax_scale"] is not None:
        frame.set_scale(_number("softmax_scale", numbers["softmax_scale"], float))
    if numbers["dropout_p"]:
        if rng_state is None:
            raise InvalidArgument(
                f"rng_state: is None, but dropout_p is {numbers['dropout_p']}; pass (seed, offset)"
            )
        for name, value in zip(("dropout_seed", "dropout_offset"), _seed_and_offset(rng_state)):
            frame.set(_abi.Problem, name, value)


def _number(name: str, value: Any, kind: type) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        words = "an integer" if kind is int else "a number"
        raise TypeError(f"{name}: {value!r}; it must be {words}") from error


def attention_of_arrays(
    q: Any, k: Any, v: Any, options: tuple[Any, ...], return_lse: bool, return_weights: bool
) -> tuple[Any, Any, Any]:
    """(out, lse, weights) for DLPack arrays, None where not asked for; no gradients."""
    inputs = {name: _Input(name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    for name, x in zip(_TENSOR_OPTIONS, options):
        if x is not None:
            inputs[name] = _Input(name, x)
    rng_state = options[len(_TENSOR_OPTIONS)]
    numbers = dict(zip(_NUMBER_OPTIONS, options[len(_TENSOR_OPTIONS) + 1 :]))
    packed = "cu_seqlens_q" in inputs
    packed_k = "cu_seqlens_k" in inputs and "block_table" not in inputs
    for name in "qkv":
        ndim, shape = (3 if (packed if name == "q" else packed_k) else 4), inputs[name].shape
        if len(shape) != ndim:
            raise InvalidArgument(
                f"{name}: shape {shape} has {len(shape)} dimensions; it must have {ndim}"
            )
    sq = inputs["q"].shape
    dtype = inputs["q"].dtype
    numpy = _numpy()
    if numpy is not None and isinstance(q, numpy.ndarray) and dtype not in _NUMPY_NAMES:
        raise InvalidArgument(f"q: dtype {q.dtype}; allowed are float32 and float16")
    if dtype[1] not in (16, 32, 64):
        raise InvalidArgument(f"q: DLPack dtype {dtype}; allowed are f32, f16 and bf16")
    lse_shape = (sq[1], sq[0]) if packed else (sq[0], sq[2], sq[1])
    gpu = inputs["q"].tensor.device_type in (_abi.DL_CUDA, _abi.DL_ROCM)
    results = {"out": _make_result("out", q, gpu, (*sq[:-1], inputs["v"].shape[-1]), dtype)}
    if return_lse:
        results["lse"] = _make_result("lse", q, gpu, lse_shape, _F32)
    if return_weights:
        shape = _weights_shape(inputs, numbers, packed)
        results["s_dmask"] = _make_result("weights", q, gpu, shape, _F32)
    frame = _frame.Frame(3)
    frame.set(_abi.Execution, "backend", numbers["backend"])
    threads = _number("num_threads", numbers["num_threads"], int)
    frame.set(_abi.Execution, "num_threads", threads)
    for name, x in inputs.items():
        frame.set(_abi.Problem, name, x.address)
    _set_numbers(frame, numbers, rng_state)
    for name, result in results.items():
        _set_result(frame, name, result)
    frame.prepare("infer")
    frame.run(0, _Scratch(q) if gpu else None)
    given = {name: _hand_over(q, result) for name, result in results.items()}
    return given["out"], given.get("lse"), given.get("s_dmask")


def _weights_shape(
    inputs: dict[str, _Input], numbers: dict[str, Any], packed: bool
) -> tuple[int, ...]:
    sq, sk = inputs["q"].shape, inputs["k"].shape
    if not packed:
        pages = inputs["block_table"].shape[1] if "block_table" in inputs else 1
        return (sq[0], sq[2], sq[1], sk[1] * pages)
    for name in ("max_seqlen_q", "max_seqlen_k"):
        if not numbers[name]:
            raise InvalidArgument(f"{name}: is not given; weights of packed sequences need it")
    batch = inputs["cu_seqlens_q"].shape[0] - 1
    return (batch, sq[1], numbers["max_seqlen_q"], numbers["max_seqlen_k"])
