#!/usr/bin/env python3
"""Times that the simulator's cycle model predicts for this library's kernels, beside recorded ones.

    predicted_times.py --command build/bin/rocflash --library build/lib/sim/libamdhip64.so [--record] [--timelines FOLDER]

A kernel that has become more than 5 % slower than recorded is a failure; the timelines of both are then named, that of now is
written first. --record writes the present times, and the timelines of forward, as the new record.
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
WORSE = 1.05
KEPT = ("forward d128", "forward d64")  # cases whose timelines are recorded
KEPT_CLOCKS = (30000, 36000)  # what is kept of them: in the middle of the loop

# Enough workgroups for one unit to be in the middle of its work; only what the model samples is executed.
CASES = {
    "forward d128": ["--op", "forward", "--head-dim", "128", "--seqlen", "1024", "--no-causal"],
    "forward d128 causal": ["--op", "forward", "--head-dim", "128", "--seqlen", "1024"],
    "forward d64": ["--op", "forward", "--head-dim", "64", "--seqlen", "1024", "--no-causal"],
    "forward d256": ["--op", "forward", "--head-dim", "256", "--seqlen", "512", "--no-causal"],
    "backward d128": ["--op", "backward", "--head-dim", "128", "--seqlen", "512", "--no-causal"],
    "backward d64": ["--op", "backward", "--head-dim", "64", "--seqlen", "512", "--no-causal"],
}
ARCHS = ["gfx942", "gfx950"]


def predict(given: argparse.Namespace, arch: str, words: list[str], timeline: Path | None = None) -> dict[str, float]:
    """Cycles of the first launch of each kernel."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "times"
        environment = os.environ | {
            "ROCFLASH_HIP_LIBRARY": str(given.library),
            "ROCFLASH_SIM_ARCH": arch,
            "ROCFLASH_SIM_CHECKS": "none",
            "ROCFLASH_SIM_TIME": str(log),
            "ROCFLASH_SIM_TIME_ONLY": "1",
        }
        if timeline:
            environment["ROCFLASH_SIM_TIMELINE"] = str(timeline)
        command = [given.command, "bench", "--device", "hip:0", "--repeat", "1", "--dtype", "bf16", "--batch", "1", "--no-standard"]
        done = subprocess.run([*command, "--heads", "2", *words], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{arch}: {done.stderr.strip() or done.stdout.strip()}")
        cycles: dict[str, float] = {}
        for line in log.read_text().splitlines():
            launch = json.loads(line)
            cycles.setdefault(launch["kernel"], launch["cycles"])
        return cycles


def keep_timeline(given: argparse.Namespace, arch: str, case: str, words: list[str]) -> None:
    """The middle of the timeline of one SIMD: small enough to be kept beside the record."""
    whole = given.timelines / name_of(arch, case)
    predict(given, arch, words, whole)
    trace = json.loads(whole.read_text())
    first, last = KEPT_CLOCKS
    trace["traceEvents"] = [
        e for e in trace["traceEvents"] if e["pid"] == 0 and (e["ph"] == "M" or first <= e["ts"] < last)
    ]
    folder = HERE / "timelines"
    folder.mkdir(exist_ok=True)
    with gzip.GzipFile(folder / f"{name_of(arch, case)}.gz", "wb", mtime=0) as packed:
        packed.write(json.dumps(trace).encode())


def name_of(arch: str, case: str) -> str:
    return f"{arch}-{case.replace(' ', '-')}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", type=Path, required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--timelines", type=Path, default=Path(tempfile.gettempdir()) / "rocflash-timelines")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    given.timelines.mkdir(parents=True, exist_ok=True)
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    now: dict[str, dict[str, dict[str, float]]] = {}
    worse = 0
    for arch in ARCHS:
        for case, words in CASES.items():
            cycles = now.setdefault(arch, {})[case] = predict(given, arch, words)
            if given.record and case in KEPT:
                keep_timeline(given, arch, case, words)
            for kernel, value in cycles.items():
                before = recorded.get(arch, {}).get(case, {}).get(kernel)
                if given.record:
                    print(f"{arch} {case:20} {kernel:34} {value:12.0f}")
                    continue
                if before is None:
                    print(f"{arch} {case}: {kernel} has no record; run with --record")
                    worse += 1
                    continue
                print(f"{arch} {case:20} {kernel:34} {value:12.0f} cycles, recorded {before:12.0f}: {value / before - 1:+.1%}")
                if value > WORSE * before:
                    worse += 1
                    timeline = given.timelines / name_of(arch, case)
                    predict(given, arch, words, timeline)
                    kept = given.timelines / f"recorded-{name_of(arch, case)}"
                    source = HERE / "timelines" / f"{name_of(arch, case)}.gz"
                    if source.exists():
                        with gzip.open(source) as packed, kept.open("wb") as plain:
                            shutil.copyfileobj(packed, plain)
                    print(f"  SLOWER than recorded. Timelines: now {timeline}, recorded {kept if source.exists() else 'none kept'}")
    if given.record:
        RECORD.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
