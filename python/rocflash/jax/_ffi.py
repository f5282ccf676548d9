"""The custom calls of XLA: their registration, and one call with its validation.

Attributes name the tensor that each buffer is. Options are attributes too, under the names of the
C ABI. src/xla has the handlers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._c import abi, frames, shapes
from ..errors import InvalidArgument

if not hasattr(jax, "ffi"):
    raise ImportError(
        f"rocflash.jax: jax is {jax.__version__}; it must be 0.5 or later, which has jax.ffi"
    )

# XLA's platforms and their handlers.
_HANDLERS = {"cpu": "rocflash_xla_cpu", "CUDA": "rocflash_xla_cuda", "ROCM": "rocflash_xla_rocm"}
_OPERATIONS = ("forward", "infer", "backward", "decode")

_DTYPES = {
    "float32": (abi.DL_FLOAT, 32),
    "float16": (abi.DL_FLOAT, 16),
    "bfloat16": (abi.DL_BFLOAT, 16),
    "float64": (abi.DL_FLOAT, 64),
    "int32": (abi.DL_INT, 32),
    "bool": (abi.DL_BOOL, 8),
    "uint8": (abi.DL_UINT, 8),
}


class Call(NamedTuple):
    """A custom call except for its arrays. Hashable, so that what is made of it can be cached."""

    operation: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    numbers: tuple[
        tuple[str, Any], ...
    ]  # options of the problem and the execution that are not absent


@cache
def _register() -> None:
    library = abi.library()
    for platform, name in _HANDLERS.items():
        handler = getattr(library, name)
        for operation in _OPERATIONS:
            target = f"rocflash_{operation}"
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform)


def _struct_of(operation: str, name: str) -> Any:
    """The struct of the C ABI that has this tensor."""
    kinds = [abi.Problem, abi.Append, abi.ForwardOutputs]
    if operation == "backward":
        kinds = [abi.Problem, abi.BackwardTensors]
    return next(kind for kind in kinds if any(field == name for field, *_ in kind._fields_))


def _example(
    name: str, shape: tuple[int, ...], numbers: dict[str, Any], shape_of: dict[str, Any]
) -> Any:
    """Valid values of an int tensor, to validate everything else before its values are known."""
    values = np.zeros(shape, np.int32)
    if name in _ROWS_OF and len(shape) == 1:
        rows = shape_of.get(_ROWS_OF[name], ())[:1]
        step = numbers.get(f"max_seqlen_{name[-1]}", 0) if name != "cu_seqlens_k_new" else 0
        values[:] = np.minimum(
            np.arange(shape[0], dtype=np.int64) * max(step, 0), rows[0] if rows else 0
        )
    elif name in ("block_table", "cache_batch_idx") and shape and shape_of["k"][:1] != (0,):
        # Sequences whose caches are appended to must not share rows.
        values.T[:] = np.arange(shape[0]) % shape_of["k"][0]
    return values


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[n + 1 :], dtype=np.int64)) for n in range(len(shape)))


_ROWS_OF = {"cu_seqlens_q": "q", "cu_seqlens_k": "k", "cu_seqlens_k_new": "k_new"}
_FLOATS = ("softmax_scale", "softcap")
_WINDOW = ("window_left", "window_right")
_OF_EXECUTION = ("num_threads", "backend")


def _write_numbers(frame: frames.Frame, numbers: dict[str, Any]) -> None:
    for name, value in numbers.items():
        if name == "softmax_scale":
            frame.set_scale(value)
        elif name == "rotary_interleaved":
            frame.set(abi.Append, name, value)
        elif name not in _WINDOW:
            frame.set(abi.Execution if name in _OF_EXECUTION else abi.Problem, name, value)
    if any(name in numbers for name in _WINDOW):
        frame.set_window(*(numbers.get(name, -1) for name in _WINDOW))


@lru_cache(maxsize=1024)
def _validate(call: Call, described: tuple[tuple[tuple[int, ...], str], ...]) -> None:
    """Rejects what the library rejects on a CPU: when a call is traced, not when it runs."""
    numbers = dict(call.numbers)
    frame = frames.Frame(len(described))
    _write_numbers(frame, numbers)
    shape_of = {name: shape for name, (shape, _) in zip(call.arguments, described)}
    examples = []  # their memory is read by the query
    for n, (name, (shape, dtype)) in enumerate(zip((*call.arguments, *call.results), described)):
        if dtype not in _DTYPES:
            raise InvalidArgument(
                f"{name} has dtype {dtype}; it must be one of {', '.join(_DTYPES)}"
            )
        if n >= len(call.arguments) and name in shape_of:
            continue  # a cache, written in place
        data = (n + 1) << 40  # not read, but another tensor's would mean that they share memory
        if dtype == "int32":
            examples.append(_example(name, shape, numbers, shape_of))
            data = examples[-1].ctypes.data
        word = frame.describe(_DTYPES[dtype], (abi.DL_CPU, 0), shape, _row_major(shape), data)
        frame.point(frames.word_of(_struct_of(call.operation, name), name), word)
    frame.prepare(call.operation)
    frame.need()


def _results(call: Call, arrays: dict[str, Any]) -> list[tuple[tuple[int, ...], Any]]:
    """Shape and dtype of each result."""
    q, v = arrays["q"], arrays["v"]
    made = {
        "out": (shapes.out_shape(q.shape, v.shape), q.dtype),
        "lse": (shapes.lse_shape(q.shape), jnp.float32),
        "dsinks": (q.shape[-2:-1], jnp.float32),
    }
    for name in ("k", "v"):
        made[name] = (arrays[name].shape, arrays[name].dtype)
    for name in ("q", "k", "v", "bias"):
        if name in arrays:
            made[f"d{name}"] = (arrays[name].shape, arrays[name].dtype)
    if "alibi_slopes" in arrays:
        made["dalibi_slopes"] = (arrays["alibi_slopes"].shape, jnp.float32)
    return [made[name] for name in call.results]


def _axes_of(x: Any) -> frozenset[Any]:
    """The axes of shard_map's mesh over which an array varies."""
    kind: Any = jax.typeof(x) if hasattr(jax, "typeof") else None
    if hasattr(kind, "manual_axis_type"):
        kind = kind.manual_axis_type
    return frozenset(getattr(kind, "vma", getattr(kind, "varying", ())))  # by version of JAX


def varying(arrays: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """The arrays, varying over all axes over which any of `like` varies."""
    axes = frozenset().union(*map(_axes_of, like))

    def cast(x: Any) -> Any:
        missing = tuple(axes - _axes_of(x))
        if not missing:
            return x
        pcast: Any = getattr(jax.lax, "pcast", None)
        pvary: Any = getattr(jax.lax, "pvary", None)  # of older versions
        return pcast(x, missing, to="varying") if pcast else pvary(x, missing)

    return [cast(x) for x in arrays]


def run(call: Call, *arrays: Any) -> tuple[Any, ...]:
    """The results of a call. It has no rules for vmap and grad: see _vmap.py and _attention.py."""
    by_name = dict(zip(call.arguments, arrays))
    shapes.check_ranks(
        by_name["q"].shape,
        by_name["k"].shape,
        by_name["v"].shape,
        "cu_seqlens_q" in by_name,
        "cu_seqlens_k" in by_name and "block_table" not in by_name,
    )
    results = _results(call, by_name)
    described = [(x.shape, str(x.dtype)) for x in arrays]
    described += [(shape, str(jnp.dtype(dtype))) for shape, dtype in results]
    _validate(call, tuple(described))
    _register()
    target = jax.ffi.ffi_call(
        f"rocflash_{call.operation}",
        [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results],
        input_output_aliases={
            call.arguments.index(name): n
            for n, name in enumerate(call.results)
            if name in call.arguments
        },
        vmap_method="sequential",
    )
    attributes = {
        name: (np.float32 if name in _FLOATS else np.int64)(value) for name, value in call.numbers
    }
    found = target(
        *arrays,
        operation=call.operation,
        arguments=" ".join(call.arguments),
        results=" ".join(call.results),
        **attributes,
    )
    return tuple(varying(found, like=arrays))
