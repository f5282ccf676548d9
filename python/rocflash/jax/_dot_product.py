"""`rocflash.jax.dot_product_attention`: the interface of jax.nn.dot_product_attention.

That function aligns causal masks and windows at the first query and the first key, whatever the
lengths; `attention` aligns them at the last ones.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..errors import InvalidArgument
from ._attention import attention


def _window(local_window_size: Any) -> tuple[int | None, int | None]:
    if local_window_size is None:
        return None, None
    pair = (
        (local_window_size,) * 2 if isinstance(local_window_size, int) else tuple(local_window_size)
    )
    if len(pair) != 2 or not all(isinstance(x, int) and x >= 0 for x in pair):
        raise InvalidArgument(
            f"local_window_size is {local_window_size!r}; "
            "it must be an integer of 0 or more, or two of them"
        )
    return pair


def _positional_mask(sq: int, sk: int, left: int | None, right: int | None) -> Any:
    distance = jnp.arange(sk)[None] - jnp.arange(sq)[:, None]
    visible = jnp.ones((sq, sk), bool)
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    return visible[None, None]


def _as_4d(x: Any) -> Any:
    x = jnp.asarray(x)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: Any = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """As jax.nn.dot_product_attention, by `attention`.

    Two differences: queries that attend to no key give 0, not the mean of all values; and
    ``implementation`` must be None or "rocflash".
    """
    if implementation not in (None, "rocflash"):
        raise InvalidArgument(
            f"implementation is {implementation!r}; it must be None or 'rocflash'"
        )
    shape = jnp.shape(query)
    q, k, v = _as_4d(query), _as_4d(key), _as_4d(value)
    bias, mask = (None if x is None else _as_4d(x) for x in (bias, mask))
    if mask is not None and mask.dtype != bool:
        raise InvalidArgument(f"mask has dtype {mask.dtype}; it must be bool")
    if bias is not None and bias.dtype not in (q.dtype, jnp.float32):
        bias = bias.astype(jnp.float32)
    left, right = _window(local_window_size)
    right = 0 if is_causal else right
    window = None
    sq, sk = q.shape[1], k.shape[1]
    if left is not None or right is not None:
        visible_keys = sk if right is None else min(sk, sq + right)  # to any query
        shift = visible_keys - sq
        has_lengths = query_seq_lengths is not None or key_value_seq_lengths is not None
        if has_lengths or (left is not None and left + shift < 0):
            visible = _positional_mask(sq, sk, left, right)
            mask = visible if mask is None else mask & visible
        else:
            k, v = k[:, :visible_keys], v[:, :visible_keys]
            bias, mask = (
                x if x is None or x.shape[3] == 1 else x[..., :visible_keys] for x in (bias, mask)
            )
            window = (-1 if left is None else left + shift, -1 if right is None else right - shift)
    result = attention(
        q,
        k,
        v,
        bias=bias,
        mask=mask,
        softmax_scale=scale,
        window=window,
        seqused_q=query_seq_lengths,
        seqused_k=key_value_seq_lengths,
        return_lse=return_residual,
    )
    if not return_residual:
        return result.reshape(shape)
    out, lse = result[0], jnp.swapaxes(jax.lax.stop_gradient(result[1]), 1, 2)
    return out.reshape(shape), lse.astype(k.dtype).reshape(shape[:-1])
