"""This library behind torch.nn.functional.scaled_dot_product_attention, for models that call nothing else.

>>> import rocflash
>>> rocflash.sdpa.enable()           # or for a while: with rocflash.sdpa.enable(): ...
>>> rocflash.sdpa.last()             # who served the last call, and why
>>> rocflash.sdpa.disable()

Arguments and results are torch's: masks of bool or float (which have gradients) of every shape that broadcasts, is_causal, dropout_p,
scale, enable_gqa, any number of leading dimensions; autocast, torch.compile and deterministic algorithms are followed. What this
library cannot serve goes to torch, by the rules of `_declined` and nothing else; it is said once for each reason (`FallbackWarning`).
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

__all__ = ["FallbackWarning", "Served", "counts", "disable", "enable", "is_enabled", "last", "scaled_dot_product_attention"]

assert attention_of_tensors  # registers the operators, which must be there before a compiler asks for them


class FallbackWarning(UserWarning):
    """torch served a call while this library was enabled."""


class Served(NamedTuple):
    """Who served a call, "rocflash" or "torch", and for what reason if it was torch."""

    by: str
    reason: str = ""


_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGEST_HEAD = int(limits()["max_head_dim"])

_lock = threading.Lock()
_torchs: Any = F.scaled_dot_product_attention  # what is called where this library does not serve
_enabled = _strict = False
_last: Optional[Served] = None
_counts: Counter[Served] = Counter()
_told: set[str] = set()


# --------------------------------------------------------------------------------------------------------- who serves a call


@cache
def _is_usable(index: int) -> bool:
    return any(d["type"] != "cpu" and d["index"] == index for d in devices())


@torch.compiler.assume_constant_result
def _flash_is_off() -> bool:
    """Graphs that are compiled keep what they were traced with."""
    return not torch.backends.cuda.flash_sdp_enabled()


def _watched(*tensors: Tensor) -> str:
    """Who follows this call without a rule for this library: a mode that looks for torch's function (context parallelism has one),
    torch.func's vmap, forward-mode derivatives."""
    if torch._C._len_torch_function_stack():
        for mode in torch.overrides._get_current_function_mode_stack():
            if not isinstance(mode, DeviceContext):  # of torch.set_default_device, which only cares for new tensors
                return f"a {type(mode).__name__} is active, which may look for torch's function"
    if transforms_active():
        for level in torch._C._functorch.get_interpreter_stack() or ():
            if level.key().name in ("Vmap", "Jvp"):
                return f"torch.func.{level.key().name.lower()} is active"
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        return "forward-mode derivatives are asked for"
    return ""


def _declined(
    q: Any, k: Any, v: Any, mask: Any, dropout_p: Any, is_causal: bool, scale: Any, gqa: bool, compiling: bool
) -> str:
    """Why torch serves a call; empty if this library does. Calls that torch refuses are among them, so that it does."""
    given = [("query", q), ("key", k), ("value", v), *([] if mask is None else [("attn_mask", mask)])]
    for name, x in given:
        if not isinstance(x, Tensor):
            return f"{name}: no tensor"
        if x.is_nested or x.layout is not torch.strided:
            return f"{name}: nested or sparse"
        if not compiling and type(x) not in TENSOR_TYPES and type(x).__name__ != "FakeTensor":
            return f"{name}: a {type(x).__name__}, which has ways of its own"
        if x.device != q.device:
            return f"{name}: on {x.device}, query on {q.device}"
    if q.device.type not in ("cpu", "cuda"):
        return f"query: on {q.device.type}, which this library has no kernels for"
    if q.device.type == "cuda" and not compiling and not _is_usable(q.device.index or 0):
        return f"query: on {q.device}, which this library cannot use (rocflash.drivers() says why)"
    if _flash_is_off():
        return "flash attention is switched off (sdpa_kernel or enable_flash_sdp)"
    if q.dtype not in _DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        return f"query, key, value: {q.dtype}, {k.dtype}, {v.dtype}; this library takes float32, float16 or bfloat16 throughout"
    if min(q.dim(), k.dim(), v.dim()) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return "query, key, value: shapes that do not fit"
    if min(q.shape[-1], v.shape[-1]) < 1 or max(q.shape[-1], v.shape[-1]) > _LARGEST_HEAD:
        return f"query, value: head sizes {q.shape[-1]} and {v.shape[-1]}; this library takes 1 to {_LARGEST_HEAD}"
    for name, x in (("dropout_p", dropout_p), ("scale", scale)):
        if x is not None and not compiling and not (isinstance(x, (int, float)) and math.isfinite(x)):
            return f"{name}: {x!r}; this library takes a finite number"
    if not 0 <= dropout_p < 1:
        return f"dropout_p: {dropout_p}; this library takes [0, 1)"
    if mask is not None:
        if is_causal:
            return "attn_mask: is given, and is_causal as well"
        if mask.dtype not in (torch.bool, torch.float32, q.dtype):
            return f"attn_mask: {mask.dtype}; this library takes bool, float32 and the query's dtype"
    if gqa and (min(q.dim(), k.dim(), v.dim()) < 3 or k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        return "enable_gqa: heads that do not divide"
    return "" if compiling else _watched(*(x for _, x in given))


# ------------------------------------------------------------------------------------------------------ torch's shapes and ours


def _lead(x: Tensor) -> tuple[Any, Any]:
    """(all leading dimensions but the heads, the heads)."""
    return tuple(x.shape[:-3]), x.shape[-3] if x.dim() > 2 else 1


def _broadcast(*shapes: tuple[Any, ...]) -> Optional[tuple[Any, ...]]:
    """The shape that all broadcast to, if any."""
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
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], dropout_p: float, causal: bool, scale: Any, gqa: bool
) -> Any:
    """The result, or why torch has to give it: shapes that only arrange themselves here."""
    (batch_q, h), (batch_k, hk), (batch_v, hv) = _lead(q), _lead(k), _lead(v)
    rank, rows, keys = max(q.dim(), k.dim(), v.dim()), q.shape[-2], k.shape[-2]
    batch = _broadcast(batch_q, batch_k, batch_v)
    if gqa:
        heads = (h,) if hk == hv and batch is not None else None
    else:
        heads = _broadcast((h,), (hk,), (hv,))
        if heads is not None:
            h = heads[0]
            hk = hk if hk == hv else h  # one head for all queries is served as it is
    if batch is None or heads is None or h == 0:
        return "query, key, value: leading dimensions that do not fit"
    if not (rows and keys) and _lead(q) != (batch, h):
        return "query, key: no rows, and leading dimensions that broadcast, which torch then leaves as they are"
    if mask is not None and not _fits(mask, batch, h, rows, keys):
        return f"attn_mask: shape {tuple(mask.shape)}; it does not broadcast to the scores"
    options: dict[str, Any] = {}
    if causal and rows < keys:  # torch counts queries from the first key, this library from the last
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


# ------------------------------------------------------------------------------------------------------------------ the function


@torch.compiler.assume_constant_result
def _say(reason: str) -> bool:
    """Warns of a reason for the first time, also while a compiler traces."""
    if reason not in _told:
        _told.add(reason)
        warnings.warn(f"rocflash.sdpa: torch serves scaled_dot_product_attention: {reason}", FallbackWarning, stacklevel=4)
    return True


def _note(by: str, reason: str = "") -> None:
    global _last
    _last = Served(by, reason)
    _counts[_last] += 1


def _by_torch(reason: str, compiling: bool, *arguments: Any, **named: Any) -> Any:
    if _strict:
        raise Unsupported(f"rocflash.sdpa.enable(strict=True): {reason}")
    out = _torchs(*arguments, **named)  # raises, if it refuses too
    _say(reason)
    if not compiling:
        _note("torch", reason)
    return out


def _number(x: Any) -> Any:
    """A number of torch's or NumPy's as Python's; whatever else is left for torch to refuse."""
    if isinstance(x, Tensor) and x.dim() == 0 and not x.is_complex():
        return float(x)
    return float(x) if isinstance(x, numbers.Real) else x


def _plain_bias(bias: Any, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Optional[Tensor], bool]:
    """torch's causal bias, which compares the function that is called with torch's own, as (mask, is_causal)."""
    sizes = bias.seq_len_q, bias.seq_len_kv
    square = bias.variant == CausalVariant.UPPER_LEFT or sizes[0] == sizes[1]
    if square and not is_causal and min(q.dim(), k.dim()) >= 2 and sizes == (q.shape[-2], k.shape[-2]):
        return None, True
    return bias._materialize(q.device), is_causal


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: Optional[float] = None, enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by this library, whether that is enabled there or not.

    Dropout draws from torch's CPU generator, so the weights it drops are not those that torch's own kernels would.
    """
    compiling = is_compiling()
    q, k, v = query, key, value
    if not compiling:
        dropout_p, scale = _number(dropout_p), _number(scale)
    if (compiling or autocasting()) and all(isinstance(x, Tensor) for x in (q, k, v)):
        q, k, v = autocast(q, k, v)
    if isinstance(attn_mask, CausalBias) and isinstance(query, Tensor) and isinstance(key, Tensor):
        attn_mask, is_causal = _plain_bias(attn_mask, is_causal, query, key)
    reason = _declined(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa, compiling)
    if not reason and compiling:  # an operator's refusal comes when the graph runs, and is raised
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


# ------------------------------------------------------------------------------------------------------------- switching it on


@wraps(scaled_dot_product_attention)
def _installed(*arguments: Any, **named: Any) -> Any:
    """What torch.nn.functional has while this is enabled. Who kept it beyond that gets torch's."""
    if not _enabled:
        return _torchs(*arguments, **named)
    return scaled_dot_product_attention(*arguments, **named)


_installed.__doc__ = F.scaled_dot_product_attention.__doc__


def _replace(old: Any, new: Any) -> None:
    """In torch.nn.functional, and wherever a module has imported the function by name."""
    if F.scaled_dot_product_attention is old:  # or somebody has wrapped it meanwhile, and knows the way on
        F.scaled_dot_product_attention = new
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("torch", "rocflash") or module is None:
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, attribute, new)


class _Enabled:
    """What enable() returns: as a `with` block it restores what was before."""

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
    """Puts this library behind torch.nn.functional.scaled_dot_product_attention, for the whole process.

    strict: what this library cannot serve is refused (`Unsupported`) instead of left to torch.
    """
    global _enabled, _strict, _torchs
    with _lock:
        before = (_enabled, _strict)
        _strict = bool(strict)
        if not _enabled:
            _torchs = F.scaled_dot_product_attention
            _told.clear()
            _script_by_torch()
            _enabled = True
            _replace(_torchs, _installed)
        return _Enabled(before)


def disable() -> None:
    """Puts back what was there before enable()."""
    global _enabled, _strict
    with _lock:
        if _enabled:
            _enabled = _strict = False
            _replace(_installed, _torchs)


@cache
def _script_by_torch() -> None:
    """torch.jit.script cannot read this file; what it compiles keeps torch's operator."""
    from torch.jit import _builtins

    _builtins._register_builtin(_installed, "aten::scaled_dot_product_attention")


def is_enabled() -> bool:
    return _enabled


def last() -> Optional[Served]:
    """Who served the last call that ran in Python; graphs that torch.compile made do not report."""
    return _last


def counts() -> dict[Served, int]:
    """How many calls were served by whom, since the process began."""
    return dict(_counts)
