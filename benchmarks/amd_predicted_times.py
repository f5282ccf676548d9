#!/usr/bin/env python3
"""Records predicted times of AMD cards for the page of `python -m rocflash.report`.

    python3 benchmarks/amd_predicted_times.py [--op forward] [--seqlen 4096] [--causal]
                                 [--build build] [--head-dim 128 64] [--archs gfx942 …]

The times are those of the simulator's cycle model for bf16, batch 16 and 16 heads; none of them is
a measurement. Forward of 4096 queries and keys, not causal, goes into
python/rocflash/report/predicted.py, where other cards keep their figures; other shapes are only
printed. A card with a matrix unit takes about 20 seconds of processor time, gfx1030 minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "packaging"))
import device_table

ROOT = Path(__file__).parents[1]
FILE = ROOT / "python/rocflash/report/predicted.py"
# Cards with a stated peak, which the cycle model supports.
ARCHS = [
    arch
    for arch, device in device_table.devices().items()
    if arch.startswith("gfx") and device.peak_tflops
]
# Without a matrix unit and with wave32, gfx1030 takes minutes to simulate.
SLOW = "gfx1030"
SHAPE = ["--dtype", "bf16", "--batch", "16", "--heads", "16", "--no-standard"]
HEAD = '''"""TFLOP/s predicted by the simulator's cycle model, by (target, head dimension).

benchmarks/amd_predicted_times.py writes this file.
"""

PREDICTED: dict[tuple[str, int], float] = {
'''


def recorded() -> dict[tuple[str, int], float]:
    spec = importlib.util.spec_from_file_location("predicted", FILE)
    if not FILE.exists() or spec is None or spec.loader is None:
        return {}
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.PREDICTED)


def predict(build: Path, arch: str, head_dim: int, shape: list[str]) -> float:
    environment = os.environ | {
        "ROCFLASH_HIP_LIBRARY": str(build / "lib/sim/libamdhip64.so"),
        "ROCFLASH_SIM_ARCH": arch,
        "ROCFLASH_SIM_CHECKS": "none",
        "ROCFLASH_SIM_TIME_ONLY": "1",
    }
    command = [
        build / "bin/rocflash",
        "bench",
        "--device",
        "hip:0",
        "--repeat",
        "1",
        "--head-dim",
        str(head_dim),
        "--json",
        "-",
    ]
    done = subprocess.run(
        [*command, *SHAPE, *shape], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{arch}: {done.stderr.strip() or done.stdout.strip()}")
    found = json.loads(done.stdout)["results"][0]
    if "predicted_tflops" not in found:
        sys.exit(f"{build}: its simulator has no cycle model; build it again")
    return float(found["predicted_tflops"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[128, 64])
    parser.add_argument(
        "--archs",
        nargs="+",
        choices=ARCHS,
        default=[arch for arch in ARCHS if arch != SLOW],
        help=f"default: all but {SLOW}",
    )
    parser.add_argument("--op", choices=("forward", "backward"), default="forward")
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--causal", action="store_true")
    given = parser.parse_args()
    shape = [
        "--op",
        given.op,
        "--seqlen",
        str(given.seqlen),
        "--causal" if given.causal else "--no-causal",
    ]
    for head_dim in given.head_dim:
        for arch in given.archs:
            tflops = round(predict(given.build, arch, head_dim, shape), 1)
            if (given.op, given.seqlen, given.causal) == ("forward", 4096, False):
                figures = recorded() | {(arch, head_dim): tflops}
                lines = [f'    ("{a}", {d}): {x},\n' for (a, d), x in sorted(figures.items())]
                FILE.write_text(HEAD + "".join(lines) + "}\n")
            print(
                f"{arch}, {given.op}, head dimension {head_dim}: {tflops} TFLOP/s predicted",
                flush=True,
            )


if __name__ == "__main__":
    main()
