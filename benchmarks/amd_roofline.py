#!/usr/bin/env python3
"""Upper bounds for forward and backward on AMD GPUs, from the simulator's counters.

Runs the specialized kernels on the simulator for each family and compares matrix cycles with vector
issue cycles. A bound is the fraction of the peak that remains if nothing else takes time: "serial"
when vector instructions never overlap with matrix instructions, "overlapped" when they always do.
Neither is a measurement.

    python3 benchmarks/amd_roofline.py [--build build] [--op forward] [--seqlen 4096]
                                 [--dtype bf16] [--head-dim 64 128]

Backward computes more products than the five that count: kernels that own queries and those that
own keys both compute scores and their gradients. Its bounds are for those five.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "packaging"))
import device_table

# Products of each kernel, and how many of an operation's count.
PRODUCTS = {
    "forward": 2,
    "backward_fused": 5,
    "backward_dq": 3,
    "backward_dkdv": 4,
    "backward_dk": 3,
    "backward_dv": 2,
}
COUNTED = {"forward": 2, "backward": 5}


def counters(build: Path, arch: str, op: str, dtype: str, head_dim: int, seqlen: int) -> dict:
    """What the first launch of each kernel cost, added up, and how many products that is."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "counters"
        environment = os.environ | {
            "ROCFLASH_HIP_LIBRARY": str(build / "lib/sim/libamdhip64.so"),
            "ROCFLASH_SIM_ARCH": arch,
            "ROCFLASH_SIM_CHECKS": "none",
            "ROCFLASH_SIM_COUNTERS": str(log),
        }
        command = [
            build / "bin/rocflash",
            "bench",
            "--device",
            "hip:0",
            "--op",
            op,
            "--repeat",
            "1",
        ]
        command += ["--dtype", dtype, "--batch", "1", "--heads", "1"]
        command += ["--head-dim", str(head_dim), "--seqlen", str(seqlen), "--no-causal"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{arch}: {done.stderr.strip() or done.stdout.strip()}")
        launches: dict[str, dict] = {}
        for line in log.read_text().splitlines():
            launch = json.loads(line)
            kernel = launch["kernel"].partition(f"_{dtype}")[0]
            if kernel.startswith(op) and kernel in PRODUCTS:
                launches.setdefault(kernel, launch)
    if not launches:
        sys.exit(f"{arch}: no kernel of {op} was launched")
    every = list(launches.values())
    total = {
        name: sum(c[name] for c in every)
        for name in ("matrix_cycles", "lds_cycles", "lds_bank_conflict_cycles")
    }
    total["vector_cycles"] = sum(
        c["issue_cycles"]["vector"] + c["issue_cycles"]["transcendental"] for c in every
    )
    total["vgprs"] = max(c["vgprs"] for c in every)
    total["waves_per_simd"] = min(c["waves_per_simd"] for c in every)
    total["products"] = sum(PRODUCTS[kernel] for kernel in launches)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--op", default="forward", choices=["forward", "backward"])
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--dtype", default="bf16", choices=["f16", "bf16"])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    given = parser.parse_args()

    print(
        f"{given.op}, {given.dtype}, {given.seqlen} queries and keys, not causal; bounds in "
        "TFLOP/s, not measurements"
    )
    print(
        f"{'target':8} {'d':>4} {'matrix':>8} {'LDS busy':>9} {'conflicts':>10} {'VGPRs':>6} "
        f"{'waves':>6} {'serial':>8} {'overlapped':>13}"
    )
    simds_of = {member.arch: member.simds for member in device_table.members()}
    for arch, device in device_table.devices().items():
        if not device.peak_tflops or arch not in simds_of or arch.startswith("sm_"):
            continue
        peak, simds = device.peak_tflops, simds_of[arch]
        # Without a matrix unit: f16 FLOP per clock of a SIMD's vector unit; bf16 has half.
        vector_rate = device.flops_per_clock // simds if device.math == "vector" else None
        for head_dim in given.head_dim:
            c = counters(given.build.resolve(), arch, given.op, given.dtype, head_dim, given.seqlen)
            vector, matrix = c["vector_cycles"], c["matrix_cycles"]
            counted = COUNTED[given.op] / c["products"]
            if vector_rate:  # products are vector instructions too: their share of all
                products = (
                    2
                    * c["products"]
                    * given.seqlen**2
                    * head_dim
                    / vector_rate
                    * (2 if given.dtype == "bf16" else 1)
                )
                share = products / vector
                serial = overlapped = counted * peak * share / (2 if given.dtype == "bf16" else 1)
                busy = vector
            else:
                share = matrix / (matrix + vector)
                serial = counted * peak * share
                overlapped = counted * peak * matrix / max(matrix, vector, c["lds_cycles"] * simds)
                busy = matrix + vector
            print(
                f"{arch:8} {head_dim:4} {share:8.1%} {c['lds_cycles'] * simds / busy:9.0%} "
                f"{c['lds_bank_conflict_cycles'] / max(c['lds_cycles'], 1):10.1%} {c['vgprs']:6} "
                f"{c['waves_per_simd']:6} "
                f"{serial:8.0f} {overlapped:13.0f}"
            )


if __name__ == "__main__":
    main()
