"""The backend `ck`: AITER, if installed, with the kernels of CK and AMD's assembly kernels.

Forward calls AITER's public functions, backward the two private ones that its autograd calls. Their
arguments differ between versions: all are passed by name, and those that a version lacks are
rejected like unsupported options.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Optional

import torch
from torch import Tensor

from .._c.options import Options, Saved
from ..errors import Unsupported
from . import problem
from .problem import Problem

NAME = "ck"
MAX_HEAD_DIM = 256
# Options that AITER's functions lack, or that have another meaning there.
_ABSENT = (
    "seqused_q",
    "seqused_k",
    "leftpad_k",
    "attention_chunk",
    "mask",
    "bias",
    "sinks",
    "block_table",
    "cache_batch_idx",
    "k_descale",
    "v_descale",
)
INSTALL = (
    "AITER is AMD's own package for ROCm (https://github.com/ROCm/aiter): git clone --recursive "
    "it, then pip install . in "
    "its directory with ROCm's torch installed; or choose another backend, such as 'native'"
)


def _aiter(module: str = "aiter") -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise Unsupported(
            f"backend is 'ck'; {module} cannot be imported ({error}). {INSTALL}"
        ) from error


def _check_device(q: Tensor) -> None:
    if q.device.type != "cuda" or not getattr(torch.version, "hip", None):
        raise Unsupported(
            f"q is on {q.device}; backend 'ck' takes tensors on AMD GPUs, from ROCm's torch"
        )


def _read(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> Problem:
    _aiter()
    _check_device(q)
    p = problem.read(q, k, v, options, NAME, MAX_HEAD_DIM)
    problem.refuse_options(p.options, NAME, _ABSENT)
    o = p.options
    if o.dropout_p:
        raise Unsupported(
            f"dropout_p is {o.dropout_p}; backend 'ck' draws other random bits than the library's, "
            "so it must be 0"
        )
    if p.packed_q != p.packed_k:
        raise Unsupported(
            "cu_seqlens_k is None, but cu_seqlens_q is given; backend 'ck' requires both or neither"
        )
    if o.softcap and not p.packed_q:
        raise Unsupported(
            f"softcap is {o.softcap}; backend 'ck' takes it with varlen sequences alone, so it "
            "must be 0"
        )
    return p


check = _read


def _call(function: Any, arguments: dict[str, Any], meant: dict[str, str]) -> Any:
    """Calls with keyword arguments. Those that this version of AITER lacks are omitted if they have
    neutral values.

    `meant` maps arguments to the options of this package.
    """
    takes = inspect.signature(function).parameters
    if not any(x.kind is x.VAR_KEYWORD for x in takes.values()):
        for name in [name for name in arguments if name not in takes]:
            value = arguments.pop(name)
            if value is not None and (isinstance(value, Tensor) or value):
                option = meant.get(name, name)
                words = "given" if isinstance(value, Tensor) else repr(value)
                raise Unsupported(
                    f"{option} is {words}; this AITER's {function.__name__} has no argument "
                    f"{name!r}"
                )
        needed = {
            n
            for n, x in takes.items()
            if x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD
        }
        if needed - set(arguments):
            raise Unsupported(
                f"backend is 'ck'; this AITER's {function.__name__} requires "
                f"{sorted(needed - set(arguments))}, which "
                "this version of rocflash does not know"
            )
    return function(**arguments)


_MEANT = {"logits_soft_cap": "softcap", "window_size": "window", "return_lse": "return_lse"}


def _window(p: Problem) -> tuple[int, int]:
    """The window in AITER's convention: a causal mask without window has no bounds."""
    o = p.options
    if o.causal:
        return (o.window_left, 0) if o.window_left >= 0 else (-1, -1)
    return o.window_left, o.window_right


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    want_weights: bool,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    p = _read(q, k, v, options)
    o = p.options
    if want_weights:
        raise Unsupported("return_weights is True; backend 'ck' returns none, so it must be False")
    arguments: dict[str, Any] = {
        "q": p.q,
        "k": p.k,
        "v": p.v,
        "dropout_p": 0.0,
        "softmax_scale": p.scale,
        "causal": bool(o.causal),
        "window_size": _window(p),
        "alibi_slopes": o.alibi_slopes,
        "deterministic": bool(o.deterministic),
        "return_lse": True,
    }
    function = _aiter().flash_attn_func
    if p.packed_q:
        function = _aiter().flash_attn_varlen_func
        arguments.update(
            cu_seqlens_q=o.cu_seqlens_q,
            cu_seqlens_k=o.cu_seqlens_k,
            max_seqlen_q=p.longest_q,
            max_seqlen_k=p.longest_k,
            logits_soft_cap=float(o.softcap),
        )
    with torch.no_grad():
        found, lse, *_ = _call(function, arguments, _MEANT)
    if p.packed_q:  # AITER does not write rows outside of all sequences
        used = _used(o.cu_seqlens_q, p.rows_q)
        found = found.where(used[:, None, None], 0)
        lse = lse.where(used, torch.inf)
    lse = lse.where(lse != -torch.inf, torch.inf)  # of fully masked rows
    if out is None:
        return found, lse, None
    problem.check_like("out", out, p.q)
    problem.check_shape("out", out, p.out_shape, "that of q with the columns of v")
    return out.copy_(found), lse, None


def _used(cu: Tensor, rows: int) -> Tensor:
    """Which rows of a packed tensor belong to a sequence."""
    at = torch.arange(rows, device=cu.device)
    return (at >= cu[0]) & (at < cu[-1])


def _columns(x: Tensor) -> Tensor:
    """AITER's kernels take head dimensions that are multiples of 8."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % 8))


def backward(
    saved: Saved,
    options: tuple[Any, ...],
    wanted: tuple[bool, ...],
    into: tuple[Optional[Tensor], ...],
) -> list[Optional[Tensor]]:
    dout, q, k, v, out, lse, dlse = saved
    if dlse is not None:
        raise Unsupported(
            "dlse is given; backend 'ck' has no gradient of lse, so it must be None: detach lse"
        )
    p = _read(q, k, v, options)
    o = p.options
    given = (*into, *(None,) * (6 - len(into)))
    requested = [want or x is not None for want, x in zip((*wanted, *(False,) * 6), given)]
    _refuse_gradients(o, requested[5])
    inputs = [_columns(x) for x in (dout, p.q, p.k, p.v, out)]
    found = [torch.zeros_like(x) if p.packed_q else torch.empty_like(x) for x in inputs[1:4]]
    arguments: dict[str, Any] = {
        **dict(zip(("dout", "q", "k", "v", "out"), inputs)),
        "softmax_lse": lse.contiguous(),
        **dict(zip(("dq", "dk", "dv"), found)),
        "dbias": None,
        "dropout_p": 0.0,
        "softmax_scale": p.scale,
        "causal": bool(o.causal),
        "window_size_left": _window(p)[0],
        "window_size_right": _window(p)[1],
        "bias": None,
        "alibi_slopes": o.alibi_slopes,
        "deterministic": bool(o.deterministic),
    }
    functions = _aiter("aiter.ops.mha")
    function = functions._flash_attn_backward
    if p.packed_q:
        function = functions._flash_attn_varlen_backward
        arguments.update(
            cu_seqlens_q=o.cu_seqlens_q,
            cu_seqlens_k=o.cu_seqlens_k,
            max_seqlen_q=p.longest_q,
            max_seqlen_k=p.longest_k,
        )
    with torch.no_grad():
        _call(function, arguments, _MEANT)
        results = [x[..., : y.shape[-1]] for x, y in zip(found, (p.q, p.k, p.v))]
        results = [x if y is None else y.copy_(x) for x, y in zip(results, given)]
    return [x if want else None for x, want in zip((*results, None, None, None), requested)]


def _refuse_gradients(o: Any, of_slopes: bool) -> None:
    if o.softcap:
        raise Unsupported(
            f"softcap is {o.softcap}; backend 'ck' has no gradients with it: AITER's leave it out, "
            "so it must be 0"
        )
    if of_slopes:
        raise Unsupported(
            "alibi_slopes requires a gradient, which backend 'ck' does not have; detach it"
        )


def refuse_missing_gradients(q: Tensor, v: Tensor, options: tuple[Any, ...]) -> None:
    o = Options(*options)
    _refuse_gradients(o, o.alibi_slopes is not None and o.alibi_slopes.requires_grad)
