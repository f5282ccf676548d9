"""Attention over sequences that are split between ranks, on torch.distributed.

>>> import rocflash.distributed as rfd
>>> x = rfd.shard_sequence(tokens, group)                    # this rank's rows
>>> out = rfd.attention(q, k, v, group=group, causal=True)   # over all ranks' keys

Ranks, transport and launching are torch's: RCCL, NCCL or gloo, torchrun.
"""

from __future__ import annotations

from .attention import attention
from .choose import Method, choose
from .context import context_parallel
from .decode import decode
from .group import RankError
from .layout import Layout
from .sequence import positions, shard_sequence, unshard_sequence

__all__ = [
    "Layout",
    "Method",
    "RankError",
    "attention",
    "choose",
    "context_parallel",
    "decode",
    "positions",
    "shard_sequence",
    "unshard_sequence",
]
