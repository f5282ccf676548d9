"""`rocflash.jax.attention`: forward and backward, with a rule for reverse-mode differentiation."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from .._arrays.calls import number
from .._c import choice
from .._c.options import window_pair
from ..errors import InvalidArgument, Unsupported
from ._ffi import Call, varying
from ._vmap import operation

_GRADED = ("q", "k", "v", "bias", "sinks", "alibi_slopes")
_NOT_IN_BACKWARD = ("num_splits",)
_KINDS = {"causal": bool, "deterministic": bool, "softmax_scale": float, "softcap": float}


def numbers_of(
    options: dict[str, Any], window: Any, backend: str | None
) -> tuple[tuple[str, Any], ...]:
    """The options that are not absent, checked and in one order."""
    left, right = (-1, -1) if window is None else window_pair(window)
    options = {**options, "window_left": left, "window_right": right}
    code = choice.current() if backend is None else choice.number_of(backend)
    if code > choice.LAST_OF_LIBRARY:
        raise Unsupported(
            f"backend is {choice.name_of(code)!r}; for JAX it must be 'native', 'reference', "
            "'naive' or 'standard'"
        )
    found = []
    for name, value in sorted(options.items()):
        if value is not None:
            value = number(name, value, _KINDS.get(name, int))
            if value != (-1 if name.startswith("window") else 0) or name == "softmax_scale":
                found.append((name, value))
    return (*found, *([("backend", code)] if code else []))


def arrays_of(given: dict[str, Any]) -> dict[str, Any]:
    """The arrays that are not None, varying over the same axes inside of shard_map."""
    arrays = {name: jnp.asarray(x) for name, x in given.items() if x is not None}
    return dict(zip(arrays, varying(list(arrays.values()), like=list(arrays.values()))))


@lru_cache(maxsize=1024)
def _differentiable(
    names: tuple[str, ...], numbers: tuple[tuple[str, Any], ...], want_lse: bool
) -> Callable[..., tuple[Any, ...]]:
    """(out, lse if wanted) of arrays in the order of `names`."""
    wanted = ("out", "lse") if want_lse else ("out",)

    @jax.custom_vjp
    def function(*arrays: Any) -> tuple[Any, ...]:
        return operation(Call("infer", names, wanted, numbers))(*arrays)

    def forward(*primals: Any) -> tuple[Any, Any]:
        arrays = [x.value for x in primals]
        out, lse = operation(Call("forward", names, ("out", "lse"), numbers))(*arrays)
        # The keys of a dict are static, and so known to `backward`.
        differentiated = {
            name: () for name, x in zip(names, primals) if name in _GRADED and x.perturbed
        }
        return (out, lse)[: len(wanted)], (arrays, out, lse, differentiated)

    def backward(saved: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        arrays, out, lse, differentiated = saved
        dout, *dlse = cotangents
        dlse = [x for x in dlse if not isinstance(x, SymbolicZero)]
        if not differentiated or (isinstance(dout, SymbolicZero) and not dlse):
            return (None,) * len(names)
        if isinstance(dout, SymbolicZero):
            dout = jnp.zeros_like(out)
        call = Call(
            "backward",
            (*names, "dout", "out", "lse", *("dlse" for _ in dlse)),
            tuple(f"d{name}" for name in differentiated),
            tuple(x for x in numbers if x[0] not in _NOT_IN_BACKWARD),
        )
        gradients = dict(zip(differentiated, operation(call)(*arrays, dout, out, lse, *dlse)))
        return tuple(
            gradients[name].astype(x.dtype) if name in gradients else None
            for name, x in zip(names, arrays)
        )

    function.defvjp(forward, backward, symbolic_zeros=True)
    return function


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    leftpad_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    window: Any = None,
    attention_chunk: int = 0,
    mask: Any = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    bias: Any = None,
    sinks: Any = None,
    deterministic: bool = False,
    return_lse: bool = False,
    num_splits: int = 0,
    num_threads: int = 0,
    backend: str | None = None,
) -> Any:
    """Exact attention: ``softmax(softcap(scale * q k^T) + alibi + bias, masked) v``.

    q is (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv), h a multiple of hk; or packed
    (total, heads, size) with ``cu_seqlens_q``, ``cu_seqlens_k`` and their maxima. f32, f16 or bf16.

    The options are those of `rocflash.attention`, without pages, dropout and weights. Arrays may be
    traced. Numbers are static: they must be Python's. q, k, v, bias, sinks and alibi_slopes have
    gradients in reverse mode.

    Returns out (as q with dv columns); with ``return_lse`` also lse, f32 (b, h, sq) or (h,
    total_q), which has gradients too.
    """
    arrays = arrays_of(
        dict(
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            leftpad_k=leftpad_k,
            mask=mask,
            alibi_slopes=alibi_slopes,
            bias=bias,
            sinks=sinks,
        )
    )
    for side, longest in (("q", max_seqlen_q), ("k", max_seqlen_k)):
        if f"cu_seqlens_{side}" in arrays and not longest:
            raise InvalidArgument(
                f"max_seqlen_{side} is {longest}; with cu_seqlens_{side} "
                "it must be given, since lengths are traced"
            )
    options = dict(
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        causal=causal,
        attention_chunk=attention_chunk,
        softmax_scale=softmax_scale,
        softcap=softcap,
        deterministic=deterministic,
        num_splits=num_splits,
        num_threads=num_threads,
    )
    numbers = numbers_of(options, window, backend)
    results = _differentiable(tuple(arrays), numbers, bool(number("return_lse", return_lse, bool)))(
        *arrays.values()
    )
    return results if return_lse else results[0]
