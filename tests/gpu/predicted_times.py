#!/usr/bin/env python3
"""Compares the cycle model's predictions for the kernels with recorded ones.

    predicted_times.py --command build/bin/rocflash --library build/lib/sim/libamdhip64.so
                       [--record] [--only CASE] [--timelines DIRECTORY]

A kernel that is more than 5 % slower than recorded fails; the test then writes its timeline and
prints the paths of both. --record stores the current times and the middle of each kernel's timeline
as the new record; --only selects one case.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORD = HERE / "predicted_times.json"
TIMELINES = HERE / "timelines"
MAX_SLOWDOWN = 1.05
KEPT_CLOCKS = 4000  # cycles stored of a timeline, from its middle on

# Enough workgroups for a compute unit to reach steady state; only the workgroups that the model
# samples are executed.
CASES = {
    "forward d128": ["--op", "forward", "--head-dim", "128", "--seqlen", "1024", "--no-causal"],
    "forward d128 causal": ["--op", "forward", "--head-dim", "128", "--seqlen", "1024"],
    "forward d64": ["--op", "forward", "--head-dim", "64", "--seqlen", "1024", "--no-causal"],
    "forward d256": ["--op", "forward", "--head-dim", "256", "--seqlen", "512", "--no-causal"],
    "backward d128": ["--op", "backward", "--head-dim", "128", "--seqlen", "512", "--no-causal"],
    "backward d64": ["--op", "backward", "--head-dim", "64", "--seqlen", "512", "--no-causal"],
    "backward d256": ["--op", "backward", "--head-dim", "256", "--seqlen", "512", "--no-causal"],
    "decode d128": [
        "--op",
        "decode",
        "--head-dim",
        "128",
        "--seqlen",
        "4096",
        "--batch",
        "8",
        "--heads",
        "32",
        "--kv-heads",
        "8",
    ],
    "decode d64": [
        "--op",
        "decode",
        "--head-dim",
        "64",
        "--seqlen",
        "4096",
        "--batch",
        "8",
        "--heads",
        "16",
        "--kv-heads",
        "2",
    ],
}
ARCHS = ["gfx942", "gfx950"]


def predict(given: argparse.Namespace, arch: str, case: str, draw: bool) -> dict[str, float]:
    """Returns the cycles of the first launch of each kernel; with `draw`, writes their
    timelines.
    """
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "times"
        environment = os.environ | {
            "ROCFLASH_HIP_LIBRARY": str(given.library),
            "ROCFLASH_SIM_ARCH": arch,
            "ROCFLASH_SIM_CHECKS": "none",
            "ROCFLASH_SIM_TIME": str(log),
            "ROCFLASH_SIM_TIME_ONLY": "1",
        }
        if draw:
            environment["ROCFLASH_SIM_TIMELINE"] = str(
                given.timelines / name_of(arch, case, "{kernel}")
            )
        command = [
            given.command,
            "bench",
            "--device",
            "hip:0",
            "--repeat",
            "1",
            "--dtype",
            "bf16",
            "--no-standard",
        ]
        if "--heads" not in CASES[case]:
            command += ["--batch", "1", "--heads", "2"]
        done = subprocess.run(
            [*command, *CASES[case]], env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{arch}: {done.stderr.strip() or done.stdout.strip()}")
        cycles: dict[str, float] = {}
        for line in log.read_text().splitlines():
            launch = json.loads(line)
            if not launch["kernel"].startswith(
                "read_memory"
            ):  # the bandwidth that decode is compared with
                cycles.setdefault(launch["kernel"], launch["cycles"])
        return cycles


def keep_timeline(given: argparse.Namespace, arch: str, case: str, kernel: str) -> None:
    """Stores the middle of the timeline of one SIMD, small enough for the repository."""
    trace = json.loads((given.timelines / name_of(arch, case, kernel)).read_text())
    events = [e for e in trace["traceEvents"] if e["pid"] == 0]
    first = max((e["ts"] for e in events if e["ph"] != "M"), default=0) // 2
    trace["traceEvents"] = [
        e for e in events if e["ph"] == "M" or first <= e["ts"] < first + KEPT_CLOCKS
    ]
    TIMELINES.mkdir(exist_ok=True)
    with gzip.GzipFile(
        TIMELINES / f"{name_of(arch, case, kernel)}.gz", "wb", mtime=0
    ) as compressed:
        compressed.write(json.dumps(trace).encode())


def decompressed(given: argparse.Namespace, name: str) -> str:
    """Decompresses the recorded timeline and returns its path."""
    if not (TIMELINES / f"{name}.gz").exists():
        return "none: the kernel was recorded without one"
    path = given.timelines / f"recorded-{name}"
    with gzip.open(TIMELINES / f"{name}.gz") as compressed, path.open("wb") as file:
        shutil.copyfileobj(compressed, file)
    return str(path)


def name_of(arch: str, case: str, kernel: str) -> str:
    return f"{arch}-{case.replace(' ', '-')}-{kernel}.json"


def compare(
    given: argparse.Namespace,
    arch: str,
    case: str,
    now: dict[str, float],
    recorded: dict[str, float],
) -> int:
    """Returns the number of kernels without a record or with a regression."""
    regressions = 0
    if any(value > MAX_SLOWDOWN * recorded.get(kernel, value) for kernel, value in now.items()):
        predict(given, arch, case, draw=True)
    for kernel, value in now.items():
        before = recorded.get(kernel)
        if before is None:
            print(f"{arch} {case}: {kernel} has no record; run with --record")
            regressions += 1
            continue
        print(
            f"{arch} {case:20} {kernel:34} {value:12.0f} cycles, recorded {before:12.0f}: "
            f"{value / before - 1:+.1%}"
        )
        if value > MAX_SLOWDOWN * before:
            regressions += 1
            name = name_of(arch, case, kernel)
            print(
                f"  SLOWER than recorded. Timelines: now {given.timelines / name}, recorded "
                f"{decompressed(given, name)}"
            )
    return regressions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", type=Path, required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument(
        "--timelines", type=Path, default=Path(tempfile.gettempdir()) / "rocflash-timelines"
    )
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", choices=CASES)
    given = parser.parse_args()
    given.timelines.mkdir(parents=True, exist_ok=True)
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    regressions = 0
    for arch in ARCHS:
        for case in [given.only] if given.only else CASES:
            now = predict(given, arch, case, draw=given.record)
            if not given.record:
                regressions += compare(given, arch, case, now, recorded.get(arch, {}).get(case, {}))
                continue
            recorded.setdefault(arch, {})[case] = now
            for kernel, value in now.items():
                print(f"{arch} {case:20} {kernel:34} {value:12.0f}")
                keep_timeline(given, arch, case, kernel)
    if given.record:
        RECORD.write_text(json.dumps(recorded, indent=1) + "\n")
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())
