"""Exact attention for JAX, as custom calls of XLA on CPUs and on AMD and NVIDIA GPUs.

>>> import jax, rocflash.jax
>>> q = k = v = jax.random.normal(jax.random.key(0), (1, 128, 8, 64))
>>> jax.jit(lambda q, k, v: rocflash.jax.attention(q, k, v, causal=True))(q, k, v).shape
(1, 128, 8, 64)

The functions work under jit, grad, vmap and shard_map. docs/guides/jax.md describes them.
"""

from __future__ import annotations

from ._attention import attention
from ._decode import Decoded, decode
from ._dot_product import dot_product_attention

__all__ = ["Decoded", "attention", "decode", "dot_product_attention"]
