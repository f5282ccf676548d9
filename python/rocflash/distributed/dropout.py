"""The library's dropout bits for any part of a sequence.

A kernel call counts its own queries and keys. A part of a longer sequence needs the indices of the
whole one. docs/reference/semantics.md defines the bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_ROUNDS = 10


def _philox(counter: list[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Philox 4x32-10 on int64 tensors of values below 2**32; wrapping products keep the low 64
    bits.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _M0, c2 * _M1
        c0, c1 = (second >> 32) & _LOW ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> 32) & _LOW ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return [c0, c1, c2, c3]


def keep_mask(
    seed: int, offset: int, dropout_p: float, bh: Tensor, query: range, key: range
) -> Tensor:
    """(*bh, queries, keys), True where a weight is kept.

    bh is sequence * heads + head of the whole problem; queries and keys are indices within the
    sequence. Seed and offset are unsigned.
    """
    device = bh.device
    i = torch.arange(query.start, query.stop, query.step, device=device)
    j = torch.arange(key.start, key.stop, key.step, device=device)
    blocks, at = torch.unique(j // 8, return_inverse=True)
    shape = (*bh.shape, len(i), len(blocks))
    zero = torch.zeros(shape, dtype=torch.int64, device=device)
    words = _philox(
        [
            zero + blocks,
            zero + i[:, None],
            zero + bh[..., None, None],
            zero + (offset & _LOW),
        ],
        (seed & _LOW, (seed >> 32) ^ (offset >> 32)),
    )
    halves = [half.to(torch.int32) for word in words for half in (word & 0xFFFF, word >> 16)]
    halfwords = torch.stack(halves, dim=-1)
    bits = halfwords[..., at, j % 8]
    return bits < int((1 - dropout_p) * 65536 + 0.5)
