"""AMD cards that are not at hand: what their kernels could reach, from instructions counted in the simulator. None of it is measured.

`python3 bench/gpu_bounds.py` finds the bounds: forward, bf16, 4096 queries and keys, not causal, TFLOP/s. "in turn" has each wave's vector
work wait for matrix work, "side by side" never; memory, latency and clocks are left out of both, so a card will be slower than the
second. Best known is what others published for kernels of theirs (docs/performance.md names them).
"""

from __future__ import annotations

from typing import NamedTuple, Optional


class Card(NamedTuple):
    arch: str
    name: str
    head_dim: int
    in_turn: float
    side_by_side: Optional[float]
    best_known: Optional[float]
    peak: float


CARDS = (
    Card("gfx90a", "MI210", 64, 118, 181, None, 181.0),
    Card("gfx90a", "MI210", 128, 142, 181, None, 181.0),
    Card("gfx942", "MI300X", 64, 621, 1182, None, 1307.4),
    Card("gfx942", "MI300X", 128, 827, 1307, 592, 1307.4),
    Card("gfx950", "MI355X", 64, 892, 1383, 979, 2516.6),
    Card("gfx950", "MI355X", 128, 1273, 2517, 1437, 2516.6),
    Card("gfx1100", "RX 7900 XTX", 64, 89, 123, 48, 122.9),
    Card("gfx1100", "RX 7900 XTX", 128, 102, 123, 42, 122.9),
    Card("gfx1201", "RX 9070 XT", 64, 122, 195, None, 194.6),
    Card("gfx1201", "RX 9070 XT", 128, 147, 195, 108, 194.6),
)
