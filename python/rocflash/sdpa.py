"""Replaces torch.nn.functional.scaled_dot_product_attention with this library, for models that call
it.

>>> import rocflash
>>> rocflash.sdpa.enable()           # or in a block: with rocflash.sdpa.enable(): ...
>>> rocflash.sdpa.last()             # the implementation of the last call, and why
>>> rocflash.sdpa.disable()

Arguments and results are torch's: masks of bool or float (which have gradients) of every shape that
broadcasts, is_causal, dropout_p, scale, enable_gqa, any number of leading dimensions; autocast,
torch.compile and deterministic algorithms are supported. Calls that this library does not support
fall back to torch, only by the rules of `_declined`, with one `FallbackWarning` per reason.
"""

from __future__ import annotations

import math
import numbers
import sys
import threading
import warnings
from collections import Counter
from functools import cache, wraps
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from ._torch.attention import attention_of_tensors, autocast
from ._torch.route import TENSOR_TYPES, autocasting, is_compiling, transforms_active
from .attention import attention
from .errors import Unsupported
from .info import devices, limits

try:
    from torch.nn.attention.bias import CausalBias, CausalVariant
except ImportError:  # torch 2.2
    CausalBias = CausalVariant = type("Absent", (), {})  # type: ignore[assignment, misc]

__all__ = [
    "FallbackWarning",
    "Served",
    "counts",
    "disable",
    "enable",
    "is_enabled",
    "last",
    "scaled_dot_product_attention",
]

assert callable(
    attention_of_tensors
)  # registers the operators, which must exist before a compiler traces them


class FallbackWarning(UserWarning):
    """torch served a call while this library was enabled."""


class Served(NamedTuple):
    """The implementation of a call, "rocflash" or "torch", and the reason if it was torch."""

    by: str
    reason: str = ""


_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGEST_HEAD = int(limits()["max_head_dim"])

_lock = threading.Lock()
_torchs: Any = F.scaled_dot_product_attention  # the fallback
_enabled = _strict = False
_last: Optional[Served] = None
_counts: Counter[Served] = Counter()
_warned: set[str] = set()


# ---------------------------------------------------------------------------------------- selection


@cache
def _is_usable(index: int) -> bool:
    return any(d["type"] != "cpu" and d["index"] == index for d in devices())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _flash_is_off() -> bool:
    """Compiled graphs keep the implementation that they were traced with."""
    return not torch.backends.cuda.flash_sdp_enabled()


def _watched(*tensors: Tensor) -> str:
    """The active mode or transform that needs torch's function: a mode that intercepts it (such as
    that of context parallelism), torch.func's vmap, forward-mode derivatives.
    """
    if torch._C._len_torch_function_stack():
        for mode in torch.overrides._get_current_function_mode_stack():
            if not isinstance(
                mode, DeviceContext
            ):  # of torch.set_default_device, which only affects new tensors
                return f"a {type(mode).__name__} is active, which may look for torch's function"
    if transforms_active():
        for level in torch._C._functorch.get_interpreter_stack() or ():
            if level.key().name in ("Vmap", "Jvp"):
                return f"torch.func.{level.key().name.lower()} is active"
    if forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(x).tangent is not None for x in tensors
    ):
        return "forward-mode derivatives are requested"
    return ""


def _declined(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    dropout_p: Any,
    is_causal: bool,
    scale: Any,
    gqa: bool,
    compiling: bool,
) -> str:
    """Why a call falls back to torch; empty: it does not. Invalid calls fall back too, so that
    torch rejects them.
    """
    given = [
        ("query", q),
        ("key", k),
        ("value", v),
        *([] if mask is None else [("attn_mask", mask)]),
    ]
    for name, x in given:
        if not isinstance(x, Tensor):
            return f"{name} has type {type(x).__name__}; this library takes a torch.Tensor"
        if x.is_nested or x.layout is not torch.strided:
            return f"{name} is nested or sparse; this library takes strided tensors"
        if not compiling and type(x) not in TENSOR_TYPES and type(x).__name__ != "FakeTensor":
            return f"{name} has type {type(x).__name__}, which may override torch functions"
        if x.device != q.device:
            return (
                f"{name} is on {x.device}, and query is on {q.device}; they must be on the same "
                "device"
            )
    if q.device.type not in ("cpu", "cuda"):
        return f"query is on {q.device.type}; this library takes cpu and cuda tensors"
    if q.device.type == "cuda" and not compiling and not _is_usable(q.device.index or 0):
        return (
            f"query is on {q.device}, which this library cannot use (rocflash.drivers() says why)"
        )
    if _flash_is_off():
        return "flash attention is switched off (sdpa_kernel or enable_flash_sdp)"
    if q.dtype not in _DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        return (
            f"query, key and value have dtypes {q.dtype}, {k.dtype} and {v.dtype}; this library "
            "takes one of float32, float16 and bfloat16 for all"
        )
    if (
        min(q.dim(), k.dim(), v.dim()) < 2
        or q.shape[-1] != k.shape[-1]
        or k.shape[-2] != v.shape[-2]
    ):
        return (
            f"query, key and value have shapes {tuple(q.shape)}, {tuple(k.shape)} and "
            f"{tuple(v.shape)}; this library takes "
            "(..., rows, d), (..., keys, d) and (..., keys, dv)"
        )
    if min(q.shape[-1], v.shape[-1]) < 1 or max(q.shape[-1], v.shape[-1]) > _LARGEST_HEAD:
        return (
            f"query and value have head dimensions {q.shape[-1]} and {v.shape[-1]}; this library "
            f"takes 1 to {_LARGEST_HEAD}"
        )
    for name, x in (("dropout_p", dropout_p), ("scale", scale)):
        if (
            x is not None
            and not compiling
            and not (isinstance(x, (int, float)) and math.isfinite(x))
        ):
            return f"{name} is {x!r}; this library takes a finite number"
    if not 0 <= dropout_p < 1:
        return f"dropout_p is {dropout_p}; this library takes [0, 1)"
    if mask is not None:
        if is_causal:
            return "attn_mask is given, and is_causal is True; this library takes one of them"
        if mask.dtype not in (torch.bool, torch.float32, q.dtype):
            return (
                f"attn_mask has dtype {mask.dtype}; this library takes bool, float32 and the "
                "query's dtype"
            )
    if gqa and (
        min(q.dim(), k.dim(), v.dim()) < 3 or k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]
    ):
        return "enable_gqa is True; the heads of query must be a multiple of those of key"
    return "" if compiling else _watched(*(x for _, x in given))


# -------------------------------------------------------------------------- torch's shapes and ours


def _lead(x: Tensor) -> tuple[Any, Any]:
    """(all leading dimensions but the heads, the heads)."""
    return tuple(x.shape[:-3]), x.shape[-3] if x.dim() > 2 else 1


def _broadcast(*shapes: tuple[Any, ...]) -> Optional[tuple[Any, ...]]:
    """The common broadcast shape, if any."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    found = []
    for sizes in zip(*padded):
        large = [n for n in sizes if n != 1]
        if any(n != large[0] for n in large):
            return None
        found.append(large[0] if large else 1)
    return tuple(found)


def _product(sizes: tuple[Any, ...]) -> Any:
    found = 1
    for size in sizes:
        found = found * size
    return found


def _arranged(x: Tensor, batch: tuple[Any, ...], heads: Any) -> Tensor:
    """(…, h, s, d) as (b, s, h, d), expanded where torch would broadcast."""
    rows, size = x.shape[-2:]
    if _lead(x) != (batch, heads) or x.dim() < 3:
        x = x.expand(*batch, heads, rows, size)
    if len(batch) != 1:
        x = x.reshape(_product(batch), heads, rows, size) if batch else x[None]
    return x.transpose(1, 2)


def _arranged_mask(mask: Tensor, batch: tuple[Any, ...]) -> Tensor:
    """A mask as (b or 1, h or 1, sq or 1, sk or 1)."""
    if mask.dim() <= 3 or (mask.dim() == 4 and len(batch) == 1):
        return mask[(None,) * (4 - mask.dim())]
    if all(n == 1 for n in mask.shape[:-3]):
        return mask.reshape(1, *mask.shape[-3:])
    return mask.expand(*batch, *mask.shape[-3:]).reshape(_product(batch), *mask.shape[-3:])


def _fits(mask: Tensor, batch: tuple[Any, ...], heads: Any, rows: Any, keys: Any) -> bool:
    whole = (*batch, heads, rows, keys)
    if not 2 <= mask.dim() <= len(whole):
        return False
    return all(n in (1, size) for n, size in zip(reversed(mask.shape), reversed(whole)))


def _serve(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor],
    dropout_p: float,
    causal: bool,
    scale: Any,
    gqa: bool,
) -> Any:
    """The result, or why the call falls back to torch: unsupported combinations of shapes."""
    (batch_q, h), (batch_k, hk), (batch_v, hv) = _lead(q), _lead(k), _lead(v)
    rank, rows, keys = max(q.dim(), k.dim(), v.dim()), q.shape[-2], k.shape[-2]
    batch = _broadcast(batch_q, batch_k, batch_v)
    if gqa:
        heads = (h,) if hk == hv and batch is not None else None
    else:
        heads = _broadcast((h,), (hk,), (hv,))
        if heads is not None:
            h = heads[0]
            hk = hk if hk == hv else h  # one head for all queries needs no change
    if batch is None or heads is None or h == 0:
        return "query, key and value have leading dimensions that do not broadcast"
    if not (rows and keys) and _lead(q) != (batch, h):
        return (
            "query or key has no rows, and leading dimensions broadcast, which torch then does not "
            "expand"
        )
    if mask is not None and not _fits(mask, batch, h, rows, keys):
        return f"attn_mask has shape {tuple(mask.shape)}; it does not broadcast to the scores"
    options: dict[str, Any] = {}
    if (
        causal and rows < keys
    ):  # torch counts queries from the first key, this library from the last
        k, v = k[..., :rows, :], v[..., :rows, :]
    if causal and rows > keys:
        options["window"] = (-1, rows - keys)
    elif causal:
        options["causal"] = True
    if mask is not None:
        options["mask" if mask.dtype is torch.bool else "bias"] = _arranged_mask(mask, batch)
    if torch.are_deterministic_algorithms_enabled():
        options["deterministic"] = True
    out = attention(
        _arranged(q, batch, h),
        _arranged(k, batch, hk),
        _arranged(v, batch, hk),
        softmax_scale=scale,
        dropout_p=dropout_p,
        **options,
    ).transpose(1, 2)
    if rank == 4:
        return out
    return out.reshape(*batch, *((h,) if rank > 2 else ()), rows, v.shape[-1])


# ------------------------------------------------------------------------------------- the function


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _say(reason: str) -> bool:
    """Warns of a reason once, also while a compiler traces."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"rocflash.sdpa: torch serves scaled_dot_product_attention: {reason}",
            FallbackWarning,
            stacklevel=4,
        )
    return True


def _note(by: str, reason: str = "") -> None:
    global _last
    _last = Served(by, reason)
    _counts[_last] += 1


def _by_torch(reason: str, compiling: bool, *arguments: Any, **named: Any) -> Any:
    if _strict:
        raise Unsupported(f"rocflash.sdpa.enable(strict=True): {reason}")
    out = _torchs(*arguments, **named)  # raises if it rejects the call too
    _say(reason)
    if not compiling:
        _note("torch", reason)
    return out


def _number(x: Any) -> Any:
    """A torch or NumPy number as a Python number; torch rejects other values."""
    if isinstance(x, Tensor) and x.dim() == 0 and not x.is_complex():
        return float(x)
    return float(x) if isinstance(x, numbers.Real) else x


def _dense_bias(bias: Any, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Optional[Tensor], bool]:
    """torch's causal bias, which compares the called function with torch's, as (mask,
    is_causal).
    """
    sizes = bias.seq_len_q, bias.seq_len_kv
    square = bias.variant == CausalVariant.UPPER_LEFT or sizes[0] == sizes[1]
    if (
        square
        and not is_causal
        and min(q.dim(), k.dim()) >= 2
        and sizes == (q.shape[-2], k.shape[-2])
    ):
        return None, True
    return bias._materialize(q.device), is_causal


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention with this library, even if it is not
    enabled.

    query: (..., h, sq, d).
    key, value: (..., hk, sk, d) and (..., hk, sk, dv).
    attn_mask: broadcasts to (..., h, sq, sk); bool, True to attend, or float, which is added to the
    scores and has a gradient. It also accepts torch.nn.attention.bias.CausalBias.
    dropout_p: the probability to drop a weight, drawn from torch's CPU generator, so that other
    weights are dropped than by torch's kernels.
    is_causal: query i attends to keys 0 to i; not together with attn_mask.
    scale: of the scores; 1 / sqrt(d) if None.
    enable_gqa: hk may be a divisor of h.

    Returns out (..., h, sq, dv). torch serves what this library does not support, with a
    FallbackWarning.
    """
    compiling = is_compiling()
    q, k, v = query, key, value
    if not compiling:
        dropout_p, scale = _number(dropout_p), _number(scale)
    if (compiling or autocasting()) and all(isinstance(x, Tensor) for x in (q, k, v)):
        q, k, v = autocast(q, k, v)
    if isinstance(attn_mask, CausalBias) and isinstance(query, Tensor) and isinstance(key, Tensor):
        attn_mask, is_causal = _dense_bias(attn_mask, is_causal, query, key)
    reason = _declined(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa, compiling)
    if not reason and compiling:  # an operator's error is raised when the graph runs
        found = _serve(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if not isinstance(found, str):
            return found
        reason = found
    elif not reason:
        try:
            found = _serve(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        except Unsupported as error:
            found = str(error)
        if not isinstance(found, str):
            _note("rocflash")
            return found
        reason = found
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    named = {"enable_gqa": True} if enable_gqa else {}  # torch has it since 2.5
    return _by_torch(reason, compiling, *given, scale=scale, **named)


# ------------------------------------------------------------------------------------------- enable


@wraps(scaled_dot_product_attention)
def _installed(*arguments: Any, **named: Any) -> Any:
    """The replacement in torch.nn.functional. References kept after disable() call torch's
    function.
    """
    if not _enabled:
        return _torchs(*arguments, **named)
    return scaled_dot_product_attention(*arguments, **named)


_installed.__doc__ = F.scaled_dot_product_attention.__doc__


def _replace(old: Any, new: Any) -> None:
    """Replaces the function in torch.nn.functional and in modules that imported it by name."""
    if F.scaled_dot_product_attention is old:  # or another package has wrapped it since
        F.scaled_dot_product_attention = new
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("torch", "rocflash") or module is None:
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, attribute, new)


class _Enabled:
    """The result of enable(): as a `with` block it restores the previous state."""

    def __init__(self, before: tuple[bool, bool]) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        was_enabled, was_strict = self._before
        if was_enabled:
            enable(strict=was_strict)
        else:
            disable()


def enable(strict: bool = False) -> _Enabled:
    """Replaces torch.nn.functional.scaled_dot_product_attention in the whole process.

    strict: unsupported calls raise `Unsupported` instead of falling back to torch.
    """
    global _enabled, _strict, _torchs
    with _lock:
        before = (_enabled, _strict)
        _strict = bool(strict)
        if not _enabled:
            _torchs = F.scaled_dot_product_attention
            _warned.clear()
            _script_by_torch()
            _enabled = True
            _replace(_torchs, _installed)
        return _Enabled(before)


def disable() -> None:
    """Restores the function from before enable()."""
    global _enabled, _strict
    with _lock:
        if _enabled:
            _enabled = _strict = False
            _replace(_installed, _torchs)


@cache
def _script_by_torch() -> None:
    """torch.jit.script cannot compile this file; scripted code keeps torch's operator."""
    from torch.jit import _builtins

    _builtins._register_builtin(_installed, "aten::scaled_dot_product_attention")


def is_enabled() -> bool:
    """Whether torch's function is replaced."""
    return _enabled


def last() -> Optional[Served]:
    """The implementation of the last call that ran in Python; compiled graphs do not report."""
    return _last


def counts() -> dict[Served, int]:
    """The number of calls per implementation since the process started."""
    return dict(_counts)
