"""vmap of a call: the mapped axis becomes part of the batch, so that one call does all.

Calls whose tensors are shared by the sequences of a batch (packed rows, pages, sinks that are
mapped) run one after another instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Callable

import jax
import jax.numpy as jnp

from ._ffi import Call, run

# Tensors by their first dimension: the batch; the batch or 1; none if one-dimensional.
_ROWS = frozenset(
    (
        "q",
        "k",
        "v",
        "out",
        "lse",
        "dout",
        "dlse",
        "dq",
        "dk",
        "dv",
        "k_new",
        "v_new",
        "seqused_q",
        "seqused_k",
        "leftpad_k",
        "rotary_seqlens",
    )
)
_SCORES = frozenset(("bias", "mask"))
_SLOPES = frozenset(("alibi_slopes",))
# Not over the batch: they may be given, but not mapped.
_SHARED = frozenset(("sinks", "rotary_cos", "rotary_sin"))


@lru_cache(maxsize=1024)
def operation(call: Call) -> Callable[..., tuple[Any, ...]]:
    """The call as a function of its arrays, with a rule for vmap."""

    @jax.custom_batching.custom_vmap
    def function(*arrays: Any) -> tuple[Any, ...]:
        return run(call, *arrays)

    @function.def_vmap
    def _rule(size: int, mapped: Sequence[bool], *arrays: Any) -> tuple[Any, Any]:
        folds = "dsinks" not in call.results and all(
            name in _ROWS | _SCORES | _SLOPES or (name in _SHARED and not is_mapped)
            for name, is_mapped in zip(call.arguments, mapped)
        )
        results = (_folded if folds else _one_by_one)(call, size, mapped, arrays)
        return results, tuple(True for _ in results)

    return function


def _one_by_one(call: Call, size: int, mapped: Sequence[bool], arrays: Any) -> tuple[Any, ...]:
    def one(given: tuple[Any, ...]) -> tuple[Any, ...]:
        rest = iter(given)
        return operation(call)(*(next(rest) if m else x for m, x in zip(mapped, arrays)))

    return jax.lax.map(one, tuple(x for m, x in zip(mapped, arrays) if m))


def _folded(call: Call, size: int, mapped: Sequence[bool], arrays: Any) -> tuple[Any, ...]:
    q = arrays[call.arguments.index("q")]
    batch = q.shape[1] if mapped[call.arguments.index("q")] else q.shape[0]
    folded, summed = [], {}
    for name, x, is_mapped in zip(call.arguments, arrays, mapped):
        has_gradient = f"d{name}" in call.results
        row = x.shape[1:] if is_mapped else x.shape
        without_batch = name in _SLOPES and len(row) == 1
        with_batch_of_1 = name in _SCORES and row[:1] == (1,)
        is_shared = without_batch or with_batch_of_1 or name in _SHARED
        if is_shared and not is_mapped and not has_gradient:
            folded.append(x)
            continue
        if without_batch:
            x = jnp.expand_dims(x, -2)
        if without_batch or with_batch_of_1:
            summed[f"d{name}"] = with_batch_of_1
        rest = x.shape[2:] if is_mapped else x.shape[1:]
        x = x if is_mapped else x[None]
        x = jnp.broadcast_to(x, (size, batch, *rest))
        folded.append(x.reshape(size * batch, *rest))
    results = operation(call)(*folded)
    return tuple(
        _unfolded(x, size, batch, summed.get(name)) for name, x in zip(call.results, results)
    )


def _unfolded(x: Any, size: int, batch: int, summed: bool | None) -> Any:
    """`summed`: the batch was not a dimension of the input; True if it is one of size 1."""
    x = x.reshape(size, batch, *x.shape[1:])
    return x if summed is None else x.astype(jnp.float32).sum(1, keepdims=summed).astype(x.dtype)
