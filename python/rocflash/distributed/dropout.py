"""Dropout's bits, as the library draws them, for any part of a problem.

The library counts a call's own queries and keys; a part of a longer sequence has to count those of the whole.
docs/semantics.md defines the bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_ROUNDS = 10


def _philox(counter: list[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Philox 4x32; words are int64 tensors of values below 2**32, products wrap as they should."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _M0, c2 * _M1
        c0, c1 = (second >> 32) & _LOW ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> 32) & _LOW ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return [c0, c1, c2, c3]


def keeps(
    seed: int, offset: int, dropout_p: float, planes: Tensor, query: range, key: range
) -> Tensor:
    """(planes..., queries, keys), True where a weight is kept.

    A plane is sequence * heads + head, of the whole problem; queries and keys are indices within the
    sequence. Seed and offset are unsigned.
    """
    device = planes.device
    i = torch.arange(query.start, query.stop, query.step, device=device)
    j = torch.arange(key.start, key.stop, key.step, device=device)
    eighths, at = torch.unique(j // 8, return_inverse=True)
    shape = (*planes.shape, len(i), len(eighths))
    zero = torch.zeros(shape, dtype=torch.int64, device=device)
    words = _philox(
        [
            zero + eighths,
            zero + i[:, None],
            zero + planes[..., None, None],
            zero + (offset & _LOW),
        ],
        (seed & _LOW, (seed >> 32) ^ (offset >> 32)),
    )
    halves = [half.to(torch.int32) for word in words for half in (word & 0xFFFF, word >> 16)]
    sixteens = torch.stack(halves, dim=-1)
    bits = sixteens[..., at, j % 8]
    return bits < int((1 - dropout_p) * 65536 + 0.5)
