"""`rocflash.attention` and `rocflash.decode` on arrays of other libraries; no gradients.

Unlike the plans for torch tensors, each call checks types, copies inputs whose last dimension is
not contiguous, and allocates results.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Optional

from .._c import abi, frames, shapes
from .._c.choice import LAST_OF_LIBRARY, current, name_of
from .._c.options import (
    APPENDED,
    AT,
    DEFAULTS,
    NUMBER_OPTIONS,
    OPTIONS,
    TENSOR_OPTIONS,
    TENSORS,
    appended,
    cache_options,
)
from ..errors import InvalidArgument, Unsupported
from .exchange import F32, INT32, Array, Maker, Scratch, compact, copied, look_at

_KINDS = {option.name: option.kind for option in OPTIONS}
# Copied to the problem unchanged; other options are converted.
_CONVERTED = ("window_left", "window_right", "softmax_scale", "num_threads", "backend")
_COPIED = tuple(name for name in NUMBER_OPTIONS if name not in _CONVERTED)


def number(name: str, value: Any, kind: type) -> Any:
    """A Python number from any library's number, without rounding or parsing."""
    try:
        if kind is bool:
            if getattr(getattr(value, "dtype", None), "kind", "") == "b" and not value.shape:
                return int(bool(value))
            flag = operator.index(value)
            if flag in (0, 1):
                return flag
        elif not isinstance(value, (bool, str, bytes)):
            return operator.index(value) if kind is int else float(value)
    except (TypeError, ValueError):
        pass
    words = {bool: "True or False", int: "an integer", float: "a number"}[kind]
    raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be {words}")


def _seed_and_offset(rng_state: Any) -> tuple[int, int]:
    try:
        seed, offset = (operator.index(x) for x in rng_state)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"rng_state is {rng_state!r}; it must be two integers, seed and offset"
        ) from error
    return seed & (2**64 - 1), offset & (2**64 - 1)


class _Call:
    """One call under construction: its arrays, its numbers and its results."""

    def __init__(self, q: Any, k: Any, v: Any, options: tuple[Any, ...]) -> None:
        self.numbers = {
            name: None if value is default is None else number(name, value, _KINDS[name])
            for name, value, default in zip(NUMBER_OPTIONS, options[TENSORS:], DEFAULTS[TENSORS:])
        }
        self._rng_state = options[AT["rng_state"]]
        given = ((name, x) for name, x in zip(TENSOR_OPTIONS[:-1], options) if x is not None)
        self._given = {"q": q, "k": k, "v": v, **dict(given)}
        self.inputs = {name: look_at(name, x) for name, x in self._given.items()}
        self._own: list[tuple[Any, str, Array]] = []
        self._check_ranks()
        self._maker = Maker(q, self.inputs["q"])

    def shape(self, name: str) -> Optional[tuple[int, ...]]:
        return self.inputs[name].shape if name in self.inputs else None

    def _check_ranks(self) -> None:
        packed_k = "cu_seqlens_k" in self.inputs and "block_table" not in self.inputs
        q, k, v = (self.inputs[name].shape for name in "qkv")
        shapes.check_ranks(q, k, v, "cu_seqlens_q" in self.inputs, packed_k)

    def add(self, kind: Any, name: str, x: Any) -> Array:
        """Adds an input of another struct than the problem."""
        view = self._fit(name, x, look_at(name, x), True)
        self._own.append((kind, name, view))
        return view

    def _fit(self, name: str, x: Any, view: Array, rows: bool) -> Array:
        """Copies x if its last dimension must be contiguous: in `rows` and integers, not in bias or
        mask.
        """
        shape, strides = view.shape, view.strides
        if view.aligned and (not shape or strides[-1] == 1 or shape[-1] <= 1):
            return view
        vector = view.dtype == INT32 or len(shape) == 1
        return copied(name, x, view) if rows or vector or not view.aligned else view

    def will_write(self, name: str, label: str) -> None:
        """Rejects outputs that are not writable."""
        if self.inputs[name].read_only:
            raise InvalidArgument(
                f"{label} is read-only; it must be writable, since new keys and values go into it"
            )
        self._given.pop(name)  # and is never replaced by a copy

    def replace(self, name: str, view: Array) -> None:
        self.inputs[name] = view

    def made(self, name: str, label: str, shape: tuple[Any, ...], dtype: Any) -> Any:
        result, view = self._maker.make(label, shape, dtype)
        self._own.append((abi.ForwardOutputs, name, view))
        return result

    def writes_to(self, name: str, x: Any) -> Any:
        view = look_at(name, x)
        if view.read_only:
            raise InvalidArgument(
                f"{name} is read-only; it must be writable, since the result goes into it"
            )
        self._own.append((abi.ForwardOutputs, name, view))
        return x

    def hand_over(self, result: Any) -> Any:
        return None if result is None else self._maker.hand_over(result)

    def run(self, call: str, rotary_interleaved: int = 0) -> None:
        for name, x in self._given.items():
            self.inputs[name] = self._fit(name, x, self.inputs[name], name in ("q", "k", "v"))
        frame = frames.Frame(len(self.inputs) + len(self._own))
        self._write_numbers(frame)
        frame.set(abi.Append, "rotary_interleaved", rotary_interleaved)
        problem = [(abi.Problem, name, view) for name, view in self.inputs.items()]
        for kind, name, view in (*problem, *self._own):
            word = frame.describe(view.dtype, view.device, view.shape, view.strides, view.data)
            frame.point(frames.word_of(kind, name), word)
        frame.prepare(call)
        frame.run(0, Scratch(self._maker) if self.inputs["q"].on_gpu else None)

    def _write_numbers(self, frame: frames.Frame) -> None:
        numbers: dict[str, Any] = self.numbers
        if numbers["backend"] > LAST_OF_LIBRARY:
            raise Unsupported(
                f"backend is {name_of(numbers['backend'])!r}; it takes torch tensors, but q is not "
                "a torch tensor. Use 'native'"
            )
        frame.set(abi.Execution, "backend", numbers["backend"])
        frame.set(abi.Execution, "num_threads", numbers["num_threads"])
        for name in _COPIED:
            frame.set(abi.Problem, name, numbers[name])
        if numbers["window_left"] != -1 or numbers["window_right"] != -1:
            frame.set_window(numbers["window_left"], numbers["window_right"])
        if numbers["softmax_scale"] is not None:
            frame.set_scale(numbers["softmax_scale"])
        if numbers["dropout_p"]:
            if self._rng_state is None:
                raise InvalidArgument(
                    f"rng_state is None, but dropout_p is {numbers['dropout_p']}; pass (seed, "
                    "offset)"
                )
            seeds = zip(("dropout_seed", "dropout_offset"), _seed_and_offset(self._rng_state))
            for name, value in seeds:
                frame.set(abi.Problem, name, value)


def attention_of_arrays(
    q: Any, k: Any, v: Any, options: tuple[Any, ...], return_lse: bool, return_weights: bool
) -> tuple[Any, Any, Any]:
    """(out, lse, weights), None if not requested."""
    call = _Call(q, k, v, options)
    q_shape, v_shape = call.inputs["q"].shape, call.inputs["v"].shape
    weights = lse = None
    if return_weights:
        lengths = (call.numbers["max_seqlen_q"], call.numbers["max_seqlen_k"])
        tables = (call.shape("cu_seqlens_q"), call.shape("block_table"))
        shape = shapes.weights_shape(q_shape, call.inputs["k"].shape, *tables, *lengths)
        for name, length in zip(("max_seqlen_q", "max_seqlen_k"), lengths):
            if "cu_seqlens_q" in call.inputs and not length:
                raise InvalidArgument(
                    f"{name} is not given; for weights of varlen sequences it must be given"
                )
        weights = call.made("s_dmask", "weights", shape, F32)
    out = call.made("out", "out", shapes.out_shape(q_shape, v_shape), call.inputs["q"].dtype)
    if return_lse:
        lse = call.made("lse", "lse", shapes.lse_shape(q_shape), F32)
    call.run("infer")
    return call.hand_over(out), call.hand_over(lse), call.hand_over(weights)


def _lengths(cache_seqlens: int, batch: int, q: Array) -> Array:
    """One length for all sequences, as an array."""
    if not 0 <= cache_seqlens < 2**31:
        raise InvalidArgument(f"cache_seqlens is {cache_seqlens}; it must be 0 to 2**31 - 1")
    if q.on_gpu:
        raise InvalidArgument(
            f"cache_seqlens is {cache_seqlens}; where q is on a GPU it must be an int32 array there"
        )
    memory = (ctypes.c_int32 * max(batch, 1))(*[cache_seqlens] * batch)
    shape = (batch,)
    return Array(INT32, q.device, shape, compact(shape), ctypes.addressof(memory), False, memory)


def decode_of_arrays(q: Any, k_cache: Any, v_cache: Any, given: Any) -> tuple[Any, Any]:
    """(out, lse), lse None unless requested; `given` is a CacheCall."""
    append, cache_seqlens, out = appended(given), given.cache_seqlens, given.out
    if given.qv is not None:
        raise Unsupported("qv is given; it is supported for torch tensors only")
    interleaved = number("rotary_interleaved", given.rotary_interleaved, bool)
    one_length = isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool)
    options = cache_options(given, None if one_length else cache_seqlens, current())
    call = _Call(q, k_cache, v_cache, options)
    q_shape = call.inputs["q"].shape
    cu_seqlens = call.shape("cu_seqlens_q")
    if cu_seqlens is not None and len(cu_seqlens) != 1:
        raise InvalidArgument(f"cu_seqlens_q has shape {cu_seqlens}; it must be (b + 1,)")
    batch = q_shape[0] if cu_seqlens is None else max(cu_seqlens[0] - 1, 0)
    if one_length:
        call.replace("seqused_k", _lengths(cache_seqlens, batch, call.inputs["q"]))
    if append[0] is not None:
        call.will_write("k", "k_cache")
        call.will_write("v", "v_cache")
    for name, x in zip(APPENDED, append):
        if x is not None:
            call.add(abi.Append, name, x)
    if "block_table" not in call.inputs and "cache_batch_idx" not in call.inputs:
        # As in upstream, a cache with capacity for more sequences is used for the first ones.
        for name in "kv":
            view = call.inputs[name]
            if view.shape and view.shape[0] > batch:
                call.replace(name, view._replace(shape=(batch, *view.shape[1:])))
    dtype, shape = call.inputs["q"].dtype, shapes.out_shape(q_shape, call.inputs["v"].shape)
    result = call.made("out", "out", shape, dtype) if out is None else call.writes_to("out", out)
    lse = call.made("lse", "lse", shapes.lse_shape(q_shape), F32) if given.want_lse else None
    rotary = append[APPENDED.index("rotary_cos")] is not None
    call.run("decode", interleaved if rotary else 0)
    return result if out is not None else call.hand_over(result), call.hand_over(lse)
