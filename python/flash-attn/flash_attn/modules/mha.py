"""All of flash_attn's attention modules under the name they are imported from."""

from flash_attn.modules.attention import (
    CrossAttention,
    FlashCrossAttention,
    FlashSelfAttention,
    SelfAttention,
    get_alibi_slopes,
)
from flash_attn.modules.block import MHA, LinearResidual
from flash_attn.modules.parallel import ParallelMHA

__all__ = [
    "MHA",
    "CrossAttention",
    "FlashCrossAttention",
    "FlashSelfAttention",
    "LinearResidual",
    "ParallelMHA",
    "SelfAttention",
    "get_alibi_slopes",
]
