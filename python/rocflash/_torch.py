"""Torch tensors to the library and back: straight calls, without autograd or dispatcher.

Everything that torch does around a call (operators, gradients, compilation) is in _ops.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import _abi, _frame
from ._errors import InvalidArgument, Unsupported

_F32 = (_abi.DL_FLOAT, 32)
_DTYPES = {
    torch.float32: _F32,
    torch.float16: (_abi.DL_FLOAT, 16),
    torch.bfloat16: (_abi.DL_BFLOAT, 16),
    torch.float64: (_abi.DL_FLOAT, 64),
    torch.int32: (_abi.DL_INT, 32),
    torch.bool: (_abi.DL_BOOL, 8),
    torch.uint8: (_abi.DL_UINT, 8),
    # Known to DLPack, refused by the library with its own words.
    torch.int8: (_abi.DL_INT, 8),
    torch.int16: (_abi.DL_INT, 16),
    torch.int64: (_abi.DL_INT, 64),
    torch.complex64: (5, 64),
    torch.complex128: (5, 128),
}
_THREADS_FIXED = "ROCFLASH_NUM_THREADS" in os.environ
_CPU = (_abi.DL_CPU, 0)
_GPU_TYPE = _abi.DL_ROCM if getattr(torch.version, "hip", None) else _abi.DL_CUDA


class Options(NamedTuple):
    """Everything about a problem but q, k and v; the field order is that of the operators."""

    cu_seqlens_q: Optional[Tensor] = None
    cu_seqlens_k: Optional[Tensor] = None
    seqused_q: Optional[Tensor] = None
    seqused_k: Optional[Tensor] = None
    leftpad_k: Optional[Tensor] = None
    mask: Optional[Tensor] = None
    alibi_slopes: Optional[Tensor] = None
    bias: Optional[Tensor] = None
    sinks: Optional[Tensor] = None
    block_table: Optional[Tensor] = None
    cache_batch_idx: Optional[Tensor] = None
    rng_state: Optional[Tensor] = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    attention_chunk: int = 0
    softmax_scale: Optional[float] = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    deterministic: bool = False
    num_splits: int = 0
    num_threads: int = 0
    backend: int = 0


TENSOR_OPTIONS = Options._fields[: Options._fields.index("rng_state") + 1]
_PLAIN_TENSOR_OPTIONS = TENSOR_OPTIONS[:-1]  # rng_state goes as two numbers


def _place(name: str, x: Tensor) -> tuple[int, int]:
    device = x.device
    if device.type == "cuda":
        return (_GPU_TYPE, device.index or 0)
    raise Unsupported(f"{name}: is on {device}; allowed are cpu and cuda (also ROCm's) tensors")


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _current_stream(index: int) -> int:
    if _raw_stream is not None:
        return int(_raw_stream(index))
    return int(torch.cuda.current_stream(index).cuda_stream)


class _Scratch:
    """Workspace from torch's allocator: freed in the order of the stream that uses it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: Optional[Tensor] = None

    def __call__(self, size: int) -> int:
        self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._memory.data_ptr()


def _begin(frame: _frame.Frame, q: Tensor, backend: int, num_threads: int) -> None:
    """Opens a frame for a call where q is: on a GPU, that is torch's current stream there."""
    frame.begin(backend, threads(num_threads))
    if q.is_cuda:
        device = q.device
        frame.on_gpu(_current_stream(device.index or 0), _Scratch(device))


def describe(
    frame: _frame.Frame, name: str, x: Tensor, alive: Optional[list[Tensor]] = None
) -> int:
    """Describes a tensor to the library; `name` is for messages about what it cannot express.

    With `alive`, a tensor whose last dimension is not contiguous is copied, since the ABI wants it
    so, and the copy is put there to outlive the call.
    """
    if x.layout is not torch.strided:
        raise InvalidArgument(f"{name}: layout {x.layout}; it must be torch.strided")
    strides, shape = x.stride(), x.shape
    if alive is not None and strides and strides[-1] != 1 and shape[-1] > 1:
        x = x.contiguous()
        strides = x.stride()
        alive.append(x)
    dtype = _DTYPES.get(x.dtype)
    if dtype is None:
        raise InvalidArgument(f"{name}: dtype {x.dtype}; allowed are float32, float16 and bfloat16")
    place = _CPU if x.is_cpu else _place(name, x)
    return frame.tensor(x.data_ptr(), dtype, place, shape, strides)


def threads(requested: int) -> int:
    """0 follows torch's own number of threads, unless ROCFLASH_NUM_THREADS says otherwise."""
    return requested if requested or _THREADS_FIXED else torch.get_num_threads()


def seed_and_offset(rng_state: Tensor) -> tuple[int, int]:
    if rng_state.dtype != torch.int64 or rng_state.shape != (2,):
        raise InvalidArgument(
            f"rng_state: {rng_state.dtype} of shape {tuple(rng_state.shape)}; "
            "it must be int64 of shape (2,): seed and offset"
        )
    if rng_state.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"rng_state: is on {rng_state.device}; it must be on the CPU")
    seed, offset = rng_state.tolist()
    return seed & (2**64 - 1), offset & (2**64 - 1)


def _set_problem(
    f: _frame.Frame, q: Tensor, k: Tensor, v: Tensor, o: Options, in_place: bool = False
) -> list[Tensor]:
    """Fills the problem; the tensors returned must live until the call is over.

    With `in_place`, k and v will be written to, so they are never replaced by copies.
    """
    p = f.problem
    alive: list[Tensor] = []
    p.q = describe(f, "q", q, alive)
    p.k = describe(f, "k", k, None if in_place else alive)
    p.v = describe(f, "v", v, None if in_place else alive)
    for name, value, default in zip(Options._fields, o, _DEFAULTS):
        if value is not default:
            _SET[name](f, name, value, alive)
    if o.dropout_p and o.rng_state is None:
        raise InvalidArgument(f"rng_state: is None, but dropout_p is {o.dropout_p}")
    return alive


_DEFAULTS = Options()


def _set_tensor(f: _frame.Frame, name: str, x: Tensor, alive: list[Tensor]) -> None:
    # Integers must be contiguous; a plane's last stride is free.
    copied = alive if x.dtype is torch.int32 or x.dim() == 1 else None
    setattr(f.problem, name, describe(f, name, x, copied))


def _set_number(f: _frame.Frame, name: str, value: Any, _: list[Tensor]) -> None:
    setattr(f.problem, name, value)


def _set_window(f: _frame.Frame, name: str, value: int, _: list[Tensor]) -> None:
    f.set_window(0 if name == "window_left" else 1, value)


def _set_scale(f: _frame.Frame, _name: str, value: float, _: list[Tensor]) -> None:
    f.set_scale(value)


def _set_rng(f: _frame.Frame, _name: str, value: Tensor, _: list[Tensor]) -> None:
    f.problem.dropout_seed, f.problem.dropout_offset = seed_and_offset(value)


def _set_nothing(*_: Any) -> None:
    """Threads and backend belong to the execution."""


_SET: dict[str, Callable[..., None]] = {
    **{name: _set_tensor for name in _PLAIN_TENSOR_OPTIONS},
    **{name: _set_number for name in Options._fields[len(TENSOR_OPTIONS) :]},
    "window_left": _set_window,
    "window_right": _set_window,
    "softmax_scale": _set_scale,
    "rng_state": _set_rng,
    "num_threads": _set_nothing,
    "backend": _set_nothing,
}


def check_ranks(
    q: Tensor, k: Tensor, v: Tensor, packed_q: bool, packed_k: Optional[bool] = None
) -> None:
    """Outputs are shaped from the inputs before the library sees them, so ranks come first."""
    if packed_k is None:
        packed_k = packed_q
    for name, x, packed in (("q", q, packed_q), ("k", k, packed_k), ("v", v, packed_k)):
        if x.dim() != (3 if packed else 4):
            side = "q" if name == "q" else "k"
            layout = f"(total_{side}, heads, head size) with cu_seqlens_{side}"
            raise InvalidArgument(
                f"{name}: shape {tuple(x.shape)} has {x.dim()} dimensions; it must be "
                + (layout if packed else f"(batch or pages, {side} length, heads, head size)")
            )


def key_rows_packed(o: Options) -> bool:
    """Whether keys lie packed, rather than dense or in pages."""
    return o.cu_seqlens_k is not None and o.block_table is None


def lse_shape(q: Tensor, packed: bool) -> tuple[int, ...]:
    return (q.shape[1], q.shape[0]) if packed else (q.shape[0], q.shape[2], q.shape[1])


def weights_shape(q: Tensor, k: Tensor, o: Options) -> tuple[int, ...]:
    if o.cu_seqlens_q is None:
        pages = 1 if o.block_table is None else o.block_table.shape[1]
        return (q.shape[0], q.shape[2], q.shape[1], k.shape[1] * pages)
    return (o.cu_seqlens_q.shape[0] - 1, q.shape[1], o.max_seqlen_q, o.max_seqlen_k)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Options,
    return_weights: bool = False,
    out: Optional[Tensor] = None,
    inference: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, weights); weights are empty unless asked for. `out` may be given to write into.

    With `inference` no backward will follow, which makes single f32 queries several times faster.
    """
    packed = o.cu_seqlens_q is not None
    check_ranks(q, k, v, packed, key_rows_packed(o))
    if out is None:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = torch.empty(lse_shape(q, packed), dtype=torch.float32, device=q.device)
    shape = weights_shape(q, k, o) if return_weights else (0,)
    weights = torch.empty(shape, dtype=torch.float32, device=q.device)
    frame = _frame.take()
    try:
        _begin(frame, q, o.backend, o.num_threads)
        alive = _set_problem(frame, q, k, v, o)
        outputs = frame.outputs
        outputs.out = describe(frame, "out", out)
        outputs.lse = describe(frame, "lse", lse)
        if return_weights:
            outputs.s_dmask = describe(frame, "weights", weights)
        frame.infer() if inference else frame.forward()
        del alive
    finally:
        _frame.give(frame)
    return out, lse, weights


class Append(NamedTuple):
    """New keys for a cache, and rotary embedding; the fields are those of the ABI."""

    k_new: Optional[Tensor] = None
    v_new: Optional[Tensor] = None
    cu_seqlens_k_new: Optional[Tensor] = None
    rotary_cos: Optional[Tensor] = None
    rotary_sin: Optional[Tensor] = None
    rotary_seqlens: Optional[Tensor] = None


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Options,
    append: Append,
    rotary_interleaved: bool,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of attention over a cache, to which new keys are appended in place first."""
    packed = o.cu_seqlens_q is not None
    check_ranks(q, k, v, packed, key_rows_packed(o))
    if out is None:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = torch.empty(lse_shape(q, packed), dtype=torch.float32, device=q.device)
    frame = _frame.take()
    try:
        _begin(frame, q, o.backend, o.num_threads)
        alive = _set_problem(frame, q, k, v, o, append.k_new is not None)
        for name, x in zip(Append._fields, append):
            if x is not None:
                setattr(frame.append, name, describe(frame, name, x, alive))
        if append.rotary_cos is not None:
            frame.append.rotary_interleaved = rotary_interleaved
        frame.outputs.out = describe(frame, "out", out)
        frame.outputs.lse = describe(frame, "lse", lse)
        frame.decode()
        del alive
    finally:
        _frame.give(frame)
    return out, lse


def combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor, lse: Tensor) -> None:
    """Merges parts (n, b, sq, h, d) and (n, b, h, sq) into out and lse."""
    frame = _frame.take()
    try:
        _begin(frame, out_partial, 0, 0)
        frame.combine(
            describe(frame, "out_partial", out_partial),
            describe(frame, "lse_partial", lse_partial),
            describe(frame, "out", out),
            describe(frame, "lse", lse),
        )
    finally:
        _frame.give(frame)


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    o: Options,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    dsinks: Optional[Tensor],
) -> None:
    """Writes the gradients that are given, each with any strides but a contiguous last one."""
    frame = _frame.take()
    try:
        _begin(frame, q, o.backend, o.num_threads)
        alive = _set_problem(frame, q, k, v, o)
        g = frame.gradients
        g.dout = describe(frame, "dout", dout, alive)
        g.out = describe(frame, "out", out, alive)
        g.lse = describe(frame, "softmax_lse", lse)
        for name, x in (("dq", dq), ("dk", dk), ("dv", dv), ("dsinks", dsinks)):
            if x is not None:
                setattr(g, name, describe(frame, name, x))
        frame.backward()
        del alive
    finally:
        _frame.give(frame)
