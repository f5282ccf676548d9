#!/usr/bin/env python3
"""Records what the simulator's cycle model predicts for AMD cards, for the page of `python -m rocflash.report`.

    python3 bench/predict_cards.py [--build build] [--head-dim 128 64] [--archs gfx942 …]

Forward, bf16, batch 16, 16 heads, 4096 queries and keys, not causal. Writes python/rocflash/report/predicted.py; cards that are not asked
for keep their figures. About 20 seconds of processor time each. None of it is a measurement.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "python/rocflash/report/predicted.py"
ARCHS = ("gfx942", "gfx950", "gfx90a", "gfx908", "gfx906", "gfx1100", "gfx1201")
SHAPE = ["--op", "forward", "--dtype", "bf16", "--batch", "16", "--heads", "16", "--seqlen", "4096", "--no-causal", "--no-standard"]
HEAD = '''"""TFLOP/s that the simulator's cycle model predicts, by (target, head size). bench/predict_cards.py writes this file."""

PREDICTED: dict[tuple[str, int], float] = {
'''


def recorded() -> dict[tuple[str, int], float]:
    spec = importlib.util.spec_from_file_location("predicted", FILE)
    if not FILE.exists() or spec is None or spec.loader is None:
        return {}
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.PREDICTED)


def predict(build: Path, arch: str, head_dim: int) -> float:
    environment = os.environ | {
        "ROCFLASH_HIP_LIBRARY": str(build / "lib/sim/libamdhip64.so"),
        "ROCFLASH_SIM_ARCH": arch,
        "ROCFLASH_SIM_CHECKS": "none",
        "ROCFLASH_SIM_TIME_ONLY": "1",
    }
    command = [build / "bin/rocflash", "bench", "--device", "hip:0", "--repeat", "1", "--head-dim", str(head_dim), "--json", "-"]
    done = subprocess.run([*command, *SHAPE], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{arch}: {done.stderr.strip() or done.stdout.strip()}")
    found = json.loads(done.stdout)["results"][0]
    if "predicted_tflops" not in found:
        sys.exit(f"{build}: its simulator has no cycle model; build it anew")
    return float(found["predicted_tflops"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--archs", nargs="+", choices=ARCHS, default=ARCHS)
    given = parser.parse_args()
    for head_dim in given.head_dim:
        for arch in given.archs:
            figures = recorded() | {(arch, head_dim): round(predict(given.build, arch, head_dim), 1)}
            lines = [f'    ("{a}", {d}): {x},\n' for (a, d), x in sorted(figures.items())]
            FILE.write_text(HEAD + "".join(lines) + "}\n")
            print(f"{arch}, head size {head_dim}: {figures[arch, head_dim]} TFLOP/s predicted", flush=True)


if __name__ == "__main__":
    main()
