"""Predictions for AMD cards from the simulator: TFLOP/s of forward in bf16, 4096 queries and keys,
not causal.

`benchmarks/amd_predicted_times.py` records the cycle model's predictions (predicted.py).
`benchmarks/amd_roofline.py` finds the bounds from instruction counts: matrix, vector and LDS work
fully overlapped, without memory, latency and clock limits. `best_known` is the best published
result of other kernels (benchmarks/results/amd.json names them).
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from .devices import DEVICE_NAMES
from .predicted import PREDICTED


class Card(NamedTuple):
    arch: str
    head_dim: int
    bound: float
    best_known: Optional[float]

    @property
    def name(self) -> str:
        return DEVICE_NAMES[self.arch]

    @property
    def predicted(self) -> Optional[float]:
        return PREDICTED.get((self.arch, self.head_dim))


CARDS = (
    Card("gfx90a", 64, 181, None),
    Card("gfx90a", 128, 181, None),
    Card("gfx942", 64, 1182, None),
    Card("gfx942", 128, 1307, 592),
    Card("gfx950", 64, 1383, 979),
    Card("gfx950", 128, 2517, 1437),
    Card("gfx1100", 64, 123, 48),
    Card("gfx1100", 128, 123, 42),
    Card("gfx1201", 64, 195, None),
    Card("gfx1201", 128, 195, 108),
)
