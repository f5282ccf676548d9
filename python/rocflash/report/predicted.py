"""TFLOP/s that the simulator's cycle model predicts, by (target, head size). bench/predict_cards.py writes this file."""

PREDICTED: dict[tuple[str, int], float] = {
    ("gfx1100", 64): 80.0,
    ("gfx1100", 128): 89.3,
    ("gfx1201", 64): 99.5,
    ("gfx1201", 128): 116.5,
    ("gfx90a", 64): 141.4,
    ("gfx90a", 128): 150.3,
    ("gfx942", 64): 550.2,
    ("gfx942", 128): 642.2,
    ("gfx950", 64): 1016.3,
    ("gfx950", 128): 1353.4,
}
