"""AMD cards that are not at hand: what their kernels could reach, by the simulator. None of it is measured. TFLOP/s of forward in
bf16, 4096 queries and keys, not causal.

`bench/predict_cards.py` has the cycle model's predictions (predicted.py). `bench/gpu_bounds.py` finds the bounds: matrix, vector and LDS
work by counted instructions, all side by side; memory, latency and clocks are left out. Best known is what others published for kernels
of theirs (docs/performance.md names them).
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from .predicted import PREDICTED


class Card(NamedTuple):
    arch: str
    name: str
    head_dim: int
    bound: float
    best_known: Optional[float]

    @property
    def predicted(self) -> Optional[float]:
        return PREDICTED.get((self.arch, self.head_dim))


CARDS = (
    Card("gfx90a", "MI210", 64, 181, None),
    Card("gfx90a", "MI210", 128, 181, None),
    Card("gfx942", "MI300X", 64, 1182, None),
    Card("gfx942", "MI300X", 128, 1307, 592),
    Card("gfx950", "MI355X", 64, 1383, 979),
    Card("gfx950", "MI355X", 128, 2517, 1437),
    Card("gfx1100", "RX 7900 XTX", 64, 123, 48),
    Card("gfx1100", "RX 7900 XTX", 128, 123, 42),
    Card("gfx1201", "RX 9070 XT", 64, 195, None),
    Card("gfx1201", "RX 9070 XT", 128, 195, 108),
)
