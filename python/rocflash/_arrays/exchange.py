"""Import of arguments and export of results: NumPy arrays directly, others (JAX, CuPy, ...) through
DLPack.

Each call writes a new DLTensor for an array. Missing strides, and those of empty arrays, become
those of a contiguous array. Results on the CPU are allocated here and exported to the caller's
library through DLPack; NumPy allocates its own. Results on a GPU are allocated by the caller's
library with the array API's `empty`; calls use the default stream.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, NamedTuple

from .._c import abi
from ..errors import InvalidArgument, Unsupported

Type = tuple[int, int]  # DLPack's code and bits
F32: Type = (abi.DL_FLOAT, 32)
INT32: Type = (abi.DL_INT, 32)
# NumPy's kinds, each with DLPack's code.
_CODES = {"f": abi.DL_FLOAT, "i": abi.DL_INT, "u": abi.DL_UINT, "b": abi.DL_BOOL}
_NUMPY_NAMES = {F32: "float32", (abi.DL_FLOAT, 16): "float16", (abi.DL_FLOAT, 64): "float64"}
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = (
    ctypes.c_void_p,
    [ctypes.py_object, ctypes.c_char_p],
)
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype, _capsule_new.argtypes = (
    ctypes.py_object,
    [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
)


class DLTensor(ctypes.Structure):
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


class DLManagedTensor(ctypes.Structure):
    _fields_ = [
        ("dl_tensor", DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
    ]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Array(NamedTuple):
    """The description of an array for the library."""

    dtype: Type
    device: tuple[int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    data: int
    read_only: bool
    kept: Any  # keeps the memory alive during the call
    # Whether strides and address are multiples of the element size, as the library requires.
    aligned: bool = True

    @property
    def on_gpu(self) -> bool:
        return self.device[0] in (abi.DL_CUDA, abi.DL_ROCM)


def numpy_of(x: Any) -> Any:
    """The module NumPy if x is one of its arrays, else None."""
    numpy = sys.modules.get("numpy")
    return numpy if numpy is not None and isinstance(x, numpy.ndarray) else None


def _look_at_numpy(name: str, x: Any, numpy: Any) -> Array:
    if isinstance(x, numpy.ma.MaskedArray):
        raise InvalidArgument(
            f"{name} is a masked array, whose mask would be lost; it must be an ordinary array"
        )
    code, size = _CODES.get(x.dtype.kind), x.dtype.itemsize
    if code is None or not x.dtype.isnative:
        raise InvalidArgument(
            f"{name} has dtype {x.dtype!r}; it must be a numeric dtype in native byte order"
        )
    data = x.ctypes.data
    strides = tuple(n // size for n in x.strides) if x.size else compact(x.shape)
    aligned = not x.size or (data % size == 0 and all(n % size == 0 for n in x.strides))
    device = (abi.DL_CPU, 0)
    return Array(
        (code, 8 * size), device, x.shape, strides, data, not x.flags.writeable, x, aligned
    )


def _capsule_of(x: Any) -> Any:
    try:  # versioned capsules have a read-only flag; older libraries do not support them
        return x.__dlpack__(max_version=(1, 0))
    except TypeError:
        return x.__dlpack__()


def look_at(name: str, x: Any) -> Array:
    """The description of an argument."""
    numpy = numpy_of(x)
    if numpy is not None:
        return _look_at_numpy(name, x, numpy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(
            f"{name} has type {type(x).__name__}; it must be a torch.Tensor or an array with "
            "__dlpack__, such as NumPy's"
        )
    is_negative = getattr(x, "is_neg", None)  # torch's __dlpack__ does not report it
    if is_negative is not None and is_negative():
        raise InvalidArgument(
            f"{name} has torch's negative bit, which DLPack cannot express; it must be resolved "
            "(resolve_neg) before"
        )
    try:
        capsule = _capsule_of(x)  # its destructor frees the memory
        if _capsule_is(capsule, b"dltensor_versioned"):
            address = _capsule_pointer(capsule, b"dltensor_versioned")
            versioned = DLManagedTensorVersioned.from_address(address)
            if versioned.major != 1:
                raise ValueError(f"it is of version {versioned.major}, which was not requested")
            t, read_only = versioned.dl_tensor, bool(versioned.flags & _READ_ONLY)
        else:
            t = DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
            read_only = False
    except Exception as error:
        raise InvalidArgument(f"{name} cannot be read by DLPack: {error}") from error
    if t.lanes != 1:
        raise InvalidArgument(f"{name} has {t.lanes} DLPack lanes per element; it must have 1")
    shape = tuple(t.shape[n] for n in range(t.ndim))
    given = bool(t.strides) and 0 not in shape
    strides = tuple(t.strides[n] for n in range(t.ndim)) if given else compact(shape)
    data, device = (t.data or 0) + t.byte_offset, (t.device_type, t.device_id)
    return Array((t.code, t.bits), device, shape, strides, data, read_only, (x, capsule))


def copied(name: str, x: Any, view: Array) -> Array:
    """A contiguous copy of the array, as for torch tensors."""
    if view.on_gpu:
        space = namespace(x)
        if hasattr(space, "ascontiguousarray"):
            return look_at(name, space.ascontiguousarray(x))
        return view  # the library rejects other dtypes
    numpy = numpy_of(x)
    if numpy is None:
        try:
            import numpy
        except ImportError:
            return view
    size = view.dtype[1] // 8
    if view.aligned and size in (1, 2, 4, 8):  # as integers, since NumPy lacks some dtypes
        reach = [(n - 1) * s * size for n, s in zip(view.shape, view.strides)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        memory = (ctypes.c_byte * (high - low + size)).from_address(view.data + low)
        strides = tuple(s * size for s in view.strides)
        x = numpy.ndarray(view.shape, f"u{size}", memory, -low, strides)
    x = numpy.array(x, order="C", subok=False)
    return view._replace(
        strides=compact(view.shape), data=x.ctypes.data, read_only=False, kept=x, aligned=True
    )


class Result:
    """Memory for a result: 64-byte aligned, contiguous, exported once through DLPack."""

    _exported: dict[int, tuple[Any, ...]] = {}

    def __init__(self, shape: tuple[int, ...], dtype: Type) -> None:
        self.shape, self.dtype = shape, dtype
        size = math.prod(shape) * dtype[1] // 8
        self._memory = ctypes.create_string_buffer(size + 64)
        self.data = -(-ctypes.addressof(self._memory) // 64) * 64
        self.strides = compact(shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (abi.DL_CPU, 0)

    def __dlpack__(self, **_: Any) -> Any:
        ndim = len(self.shape)
        sizes = (ctypes.c_int64 * (2 * ndim))(*self.shape, *self.strides)
        managed = DLManagedTensor()
        tensor = managed.dl_tensor
        tensor.data, tensor.device_type, tensor.ndim = self.data, abi.DL_CPU, ndim
        (tensor.code, tensor.bits), tensor.lanes = self.dtype, 1
        at = ctypes.addressof(sizes)
        pointer = ctypes.POINTER(ctypes.c_int64)
        tensor.shape = ctypes.cast(at, pointer)
        tensor.strides = ctypes.cast(at + 8 * ndim, pointer)
        managed.deleter = _release
        address = ctypes.addressof(managed)
        Result._exported[address] = (self._memory, sizes, managed)
        return _capsule_new(address, b"dltensor", None)

    def array(self) -> Array:
        device = (abi.DL_CPU, 0)
        return Array(self.dtype, device, self.shape, self.strides, self.data, False, self._memory)


@_Deleter  # type: ignore[untyped-decorator]
def _release(address: int) -> None:
    """The deleter of the exported tensor: releases the memory."""
    Result._exported.pop(address, None)


def namespace(like: Any) -> Any:
    """The array API namespace of `like`, if known."""
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__()
    return sys.modules.get(type(like).__module__.partition(".")[0])


class Maker:
    """Allocates results with q's array library, on q's device."""

    def __init__(self, q: Any, view: Array) -> None:
        self._q, self._view, self._numpy = q, view, numpy_of(q)
        if self._numpy is not None:
            if view.dtype not in _NUMPY_NAMES:
                raise InvalidArgument(f"q has dtype {q.dtype}; allowed are float32 and float16")
            return
        if view.dtype[1] not in (16, 32, 64):
            raise InvalidArgument(f"q has DLPack dtype {view.dtype}; allowed are f32, f16 and bf16")
        self._space = namespace(q)
        needed = "empty" if view.on_gpu else "from_dlpack"
        if self._space is None or not hasattr(self._space, needed):
            raise Unsupported(
                f"q has type {type(q).__name__} from a library without the array API's `{needed}`, "
                "so "
                "a result of its kind cannot be made; pass torch tensors or NumPy arrays"
            )

    def make(self, name: str, shape: tuple[int, ...], dtype: Type) -> tuple[Any, Array]:
        """Allocates a result and describes it; `hand_over` converts it to an array of q's
        library.
        """
        made: Any
        try:
            if self._numpy is not None:
                made = self._numpy.empty(shape, dtype=_NUMPY_NAMES[dtype])
            elif self._view.on_gpu:
                kind = self._space.float32 if dtype == F32 else self._q.dtype
                made = self._space.empty(shape, dtype=kind, device=self._q.device)
            else:
                made = Result(shape, dtype)
                return made, made.array()
        except (OverflowError, ValueError) as error:
            raise InvalidArgument(
                f"{name} has shape {shape}, which cannot be allocated: {error}"
            ) from error
        return made, look_at(name, made)

    def hand_over(self, made: Any) -> Any:
        """The result as an array of q's library."""
        return self._space.from_dlpack(made) if isinstance(made, Result) else made


class Scratch:
    """Workspace on a GPU, from the library that q comes from."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._memory: Any = None

    def __call__(self, size: int) -> int:
        self._memory, view = self._maker.make("workspace", (-(-size // 4) + 16,), F32)
        return -(-view.data // 64) * 64
