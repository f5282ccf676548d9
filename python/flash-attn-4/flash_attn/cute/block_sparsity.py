"""The lists of blocks that upstream's kernels visit, by upstream's name and fields.

Callers build them; the functions of `interface` do not support them yet and reject them by name.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from torch import Tensor

__all__ = ["BlockSparseTensorsTorch"]


class BlockSparseTensorsTorch(NamedTuple):
    """Blocks of keys per block of queries: those with a mask, and those without.

    Counts are (b|1, h|1, query blocks), indices (b|1, h|1, query blocks, key blocks), all int32.
    """

    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Optional[Tensor] = None
    full_block_idx: Optional[Tensor] = None
    cu_total_m_blocks: Optional[Tensor] = None
    cu_block_idx_offsets: Optional[Tensor] = None
    block_size: Optional[tuple[int, int]] = None
    dq_write_order: Optional[Tensor] = None
    dq_write_order_full: Optional[Tensor] = None
    spt: Optional[bool] = None
