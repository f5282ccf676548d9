"""TFLOP/s that the simulator's cycle model predicts, by (target, head size). bench/predict_cards.py writes this file."""

PREDICTED: dict[tuple[str, int], float] = {
    ("gfx1100", 128): 95.8,
    ("gfx1201", 128): 136.0,
    ("gfx90a", 128): 113.9,
    ("gfx942", 64): 449.2,
    ("gfx942", 128): 473.5,
    ("gfx950", 64): 688.3,
    ("gfx950", 128): 932.7,
}
