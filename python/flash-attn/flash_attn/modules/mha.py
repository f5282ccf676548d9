"""All of flash_attn's attention modules under their public name."""

from flash_attn.modules._mha import MHA, LinearResidual
from flash_attn.modules._mha import _cached as _update_kv_cache
from flash_attn.modules.attention import (
    CrossAttention,
    FlashCrossAttention,
    FlashSelfAttention,
    SelfAttention,
    get_alibi_slopes,
)
from flash_attn.modules.parallel import ParallelMHA

__all__ = [
    "MHA",
    "CrossAttention",
    "FlashCrossAttention",
    "FlashSelfAttention",
    "LinearResidual",
    "ParallelMHA",
    "SelfAttention",
    "_update_kv_cache",
    "get_alibi_slopes",
]
