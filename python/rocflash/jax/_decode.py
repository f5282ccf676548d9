"""`rocflash.jax.decode`: attention over a KV cache, which a call may extend."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from .._arrays.calls import number
from .._c.options import renamed
from ..errors import Error, InvalidArgument
from ._attention import arrays_of, numbers_of
from ._ffi import Call
from ._vmap import operation


class Decoded(NamedTuple):
    """The results of `decode`."""

    out: Any
    lse: Any  # None unless requested
    k_cache: Any  # with the new keys; the given cache if there are none
    v_cache: Any


def decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = True,
    rotary_seqlens: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: Any = None,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    num_splits: int = 0,
    num_threads: int = 0,
    return_lse: bool = False,
    backend: str | None = None,
) -> Decoded:
    """Attention of q over a KV cache, after k and v, if given, were appended to it. No gradients.

    The arguments are those of `rocflash.decode`. The extended caches are results: XLA writes them
    in place if the arguments are donated to jit, and copies them first otherwise.
    """
    if k is not None and cache_seqlens is None:
        raise InvalidArgument(
            "cache_seqlens is None, but k is given; it must give the positions of k"
        )
    if k is None and rotary_cos is not None:
        raise InvalidArgument(
            "rotary_cos is given, but k is None; it must be None, since it rotates appended keys"
        )
    if isinstance(cache_seqlens, int):
        if not 0 <= cache_seqlens < 2**31:
            raise InvalidArgument(f"cache_seqlens is {cache_seqlens}; it must be 0 to 2**31 - 1")
        batch = jnp.shape(q)[0] if cu_seqlens_q is None else jnp.shape(cu_seqlens_q)[0] - 1
        cache_seqlens = jnp.full((batch,), cache_seqlens, jnp.int32)
    arrays = arrays_of(
        dict(
            q=q,
            k=k_cache,
            v=v_cache,
            cu_seqlens_q=cu_seqlens_q,
            seqused_k=cache_seqlens,
            leftpad_k=cache_leftpad,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            block_table=page_table,
            cache_batch_idx=cache_batch_idx,
            k_new=k,
            v_new=v,
            cu_seqlens_k_new=cu_seqlens_k_new,
            rotary_cos=rotary_cos,
            rotary_sin=rotary_sin,
            rotary_seqlens=rotary_seqlens,
        )
    )
    options = dict(
        max_seqlen_q=max_seqlen_q,
        causal=causal,
        attention_chunk=attention_chunk,
        softmax_scale=softmax_scale,
        softcap=softcap,
        num_splits=num_splits,
        num_threads=num_threads,
    )
    if rotary_cos is not None:
        options["rotary_interleaved"] = number("rotary_interleaved", rotary_interleaved, bool)
    results = ["out", *(["lse"] if number("return_lse", return_lse, bool) else [])]
    if k is not None:
        results += ["k", "v"]
    try:
        call = Call("decode", tuple(arrays), tuple(results), numbers_of(options, window, backend))
        found = dict(zip(results, operation(call)(*arrays.values())))
    except (Error, TypeError) as error:
        raise renamed(error, "page_table") from None
    return Decoded(
        found["out"], found.get("lse"), found.get("k", arrays["k"]), found.get("v", arrays["v"])
    )
