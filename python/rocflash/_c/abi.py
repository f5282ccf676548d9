"""The C ABI of librocflash, for ctypes. The structs mirror include/rocflash/rocflash.h.

The library is opened once, on first use, from the package; ROCFLASH_LIBRARY names another
file. ctypes releases the GIL during a call.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from ..errors import Error, by_status

# DLPack's codes of dtypes and devices, which the ABI uses.
DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT, DL_BOOL = 0, 1, 2, 4, 6
DL_E4M3FN, DL_E4M3FNUZ, DL_E5M2, DL_E5M2FNUZ = 10, 11, 12, 13
DL_CPU, DL_CUDA, DL_ROCM = 1, 2, 10


class TensorPointer(c_void_p):
    """A pointer to a DLTensor; null if absent."""


class Flag(c_int32):
    """0 or 1."""


class _Struct(ctypes.Structure):
    """A struct that starts with its own size, as the ABI requires."""

    def clear(self) -> None:
        ctypes.memset(ctypes.addressof(self), 0, ctypes.sizeof(self))
        self.struct_size = ctypes.sizeof(self)


class Problem(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", TensorPointer),
        ("k", TensorPointer),
        ("v", TensorPointer),
        ("cu_seqlens_q", TensorPointer),
        ("cu_seqlens_k", TensorPointer),
        ("seqused_q", TensorPointer),
        ("seqused_k", TensorPointer),
        ("leftpad_k", TensorPointer),
        ("max_seqlen_q", c_int64),
        ("max_seqlen_k", c_int64),
        ("causal", Flag),
        ("window", c_void_p),
        ("attention_chunk", c_int64),
        ("mask", TensorPointer),
        ("softmax_scale", c_void_p),
        ("softcap", c_float),
        ("alibi_slopes", TensorPointer),
        ("bias", TensorPointer),
        ("sinks", TensorPointer),
        ("dropout_p", c_float),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("deterministic", Flag),
        ("num_splits", c_int32),
        ("block_table", TensorPointer),
        ("cache_batch_idx", TensorPointer),
        ("k_descale", TensorPointer),
        ("v_descale", TensorPointer),
    ]


class ForwardOutputs(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("out", TensorPointer),
        ("lse", TensorPointer),
        ("s_dmask", TensorPointer),
    ]


class BackwardTensors(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dout", TensorPointer),
        ("out", TensorPointer),
        ("lse", TensorPointer),
        ("dq", TensorPointer),
        ("dk", TensorPointer),
        ("dv", TensorPointer),
        ("dsinks", TensorPointer),
        ("dbias", TensorPointer),
        ("dalibi_slopes", TensorPointer),
        ("delta", TensorPointer),
        ("dlse", TensorPointer),
    ]


class Append(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("k_new", TensorPointer),
        ("v_new", TensorPointer),
        ("cu_seqlens_k_new", TensorPointer),
        ("rotary_cos", TensorPointer),
        ("rotary_sin", TensorPointer),
        ("rotary_seqlens", TensorPointer),
        ("rotary_interleaved", Flag),
    ]


class Execution(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_int32),
        ("num_threads", c_int32),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_size_t),
    ]


def _addresses(*structs: Any) -> list[tuple[str, Any]]:
    """A pointer per tensor of the structs, in their order, without repetition."""
    found = {
        name: c_void_p
        for struct in structs
        for name, kind in struct._fields_
        if kind is TensorPointer
    }
    # The scales of quantized keys and values came later: they are at the end of the struct.
    return [item for item in found.items() if item not in _SCALES]


_SCALES = [("k_descale", c_void_p), ("v_descale", c_void_p)]


class PlanArguments(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        *_addresses(Problem, Append, ForwardOutputs, BackwardTensors),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        *Execution._fields_[3:],
        *_SCALES,
    ]


class Limits(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_head_dim", c_int32),
        ("has_backward", c_int32),
        ("default_threads", c_int32),
        ("dropout_steps", c_int32),
    ]


class Device(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("name", c_char_p),
        ("arch", c_char_p),
        ("features", c_char_p),
        ("units", c_int32),
    ]


class Driver(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("library", c_char_p),
        ("reason", c_char_p),
        ("in_use", c_int32),
    ]


class Target(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("arch", c_char_p),
        ("family", c_char_p),
        ("driver", c_char_p),
    ]


# Below the package. Windows searches the directory of the program for its DLLs.
PACKAGED = Path("bin", "rocflash.dll") if os.name == "nt" else Path("lib", "librocflash.so.0")


def library_path() -> Path:
    """The file that is, or would be, opened."""
    named = os.environ.get("ROCFLASH_LIBRARY")
    return Path(named) if named else Path(__file__).parents[1] / PACKAGED


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The library, opened on first use."""
    path = library_path()
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        source = "ROCFLASH_LIBRARY" if os.environ.get("ROCFLASH_LIBRARY") else "the package"
        raise ImportError(f"rocflash: cannot open {path}, named by {source}: {error}") from error
    addresses = {  # structs go by address: that spares ctypes a check and a wrapper on each call
        "rocflash_forward": [c_void_p] * 3,
        "rocflash_backward": [c_void_p] * 3,
        "rocflash_infer": [c_void_p] * 3,
        "rocflash_decode": [c_void_p] * 4,
        "rocflash_plan_create_forward": [c_void_p] * 4,
        "rocflash_plan_create_backward": [c_void_p] * 4,
        "rocflash_plan_create_infer": [c_void_p] * 4,
        "rocflash_plan_create_decode": [c_void_p] * 5,
        "rocflash_plan_workspace": [c_void_p] * 2,
        "rocflash_plan_run": [c_void_p] * 2,
        "rocflash_combine": [c_void_p] * 5,
        "rocflash_rotate": [*[c_void_p] * 5, c_int32, *[c_void_p] * 2],
        "rocflash_forward_workspace": [c_void_p] * 4,
        "rocflash_backward_workspace": [c_void_p] * 4,
        "rocflash_infer_workspace": [c_void_p] * 4,
        "rocflash_decode_workspace": [c_void_p] * 5,
        "rocflash_forward_explain": [
            *[c_void_p] * 2,
            c_char_p,
            c_int32,
            c_void_p,
            POINTER(c_size_t),
        ],
        "rocflash_backward_explain": [
            *[c_void_p] * 2,
            c_char_p,
            c_int32,
            c_void_p,
            POINTER(c_size_t),
        ],
        "rocflash_decode_explain": [
            *[c_void_p] * 3,
            c_char_p,
            c_int32,
            c_void_p,
            POINTER(c_size_t),
        ],
        "rocflash_combine_explain": [
            *[c_void_p] * 4,
            c_char_p,
            c_int32,
            c_void_p,
            POINTER(c_size_t),
        ],
        "rocflash_rotate_explain": [
            *[c_void_p] * 5,
            c_int32,
            c_void_p,
            c_char_p,
            c_int32,
            c_void_p,
            POINTER(c_size_t),
        ],
        "rocflash_query_limits": [POINTER(Limits)],
        "rocflash_query_device": [c_int32, POINTER(Device)],
        "rocflash_query_driver": [c_int32, POINTER(Driver)],
        "rocflash_query_target": [c_int32, POINTER(Target)],
    }
    for name, arguments in addresses.items():
        function = getattr(lib, name)
        function.argtypes = arguments
        function.restype = c_int32
    lib.rocflash_plan_destroy.argtypes, lib.rocflash_plan_destroy.restype = [c_void_p], None
    lib.rocflash_last_error.restype = c_char_p
    lib.rocflash_version.restype = c_char_p
    return lib


def query(name: str, *arguments: Any) -> int:
    """Calls one of the library's query functions and returns its status."""
    return int(getattr(library(), name)(*arguments))


def limits() -> Limits:
    """The limits of the library on all devices."""
    answer = Limits()
    answer.clear()
    status = query("rocflash_query_limits", ctypes.byref(answer))
    if status:
        raise_status(status)
    return answer


def last_error() -> str:
    """The message of this thread's last error."""
    return str(library().rocflash_last_error().decode("utf-8", "replace"))


def raise_status(status: int) -> NoReturn:
    """Raises the library's last error as the exception class of its status."""
    raise by_status.get(status, Error)(last_error())
