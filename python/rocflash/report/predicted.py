"""TFLOP/s predicted by the simulator's cycle model, by (target, head dimension).

benchmarks/amd_predicted_times.py writes this file.
"""

PREDICTED: dict[tuple[str, int], float] = {
    ("gfx1100", 64): 80.0,
    ("gfx1100", 128): 89.3,
    ("gfx1201", 64): 99.5,
    ("gfx1201", 128): 116.5,
    ("gfx90a", 64): 148.7,
    ("gfx90a", 128): 153.8,
    ("gfx942", 64): 555.7,
    ("gfx942", 128): 650.1,
    ("gfx950", 64): 1039.9,
    ("gfx950", 128): 1363.9,
}
