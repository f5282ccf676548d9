"""Context parallelism on torch.distributed: attention over sequences that are split over ranks.

>>> import rocflash.distributed as rfd
>>> x = rfd.shard_sequence(tokens, group)                    # this rank's rows
>>> out = rfd.attention(q, k, v, group=group, causal=True)   # over the keys of all ranks

Process groups, backends (RCCL, NCCL, gloo) and launchers are torch's.
"""

from __future__ import annotations

from .attention import attention
from .context import context_parallel
from .decode import decode
from .group import RankError
from .heuristic import Method, choose
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
