"""Shared by the CPU benchmarks: setup of both sides, interleaved timing, checks and output files.

Import this module and call `prepare` before importing torch, which selects instruction sets when it
loads.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

# Either side limited to one instruction set. MKL only obeys on Intel's CPUs.
FORCED = {
    "avx2": {
        "ROCFLASH_CPU_ISA": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "avx512": {
        "ROCFLASH_CPU_ISA": "avx512",
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
}
_BF16_PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); (x @ x).sum().item()"
# OpenMP's threads spin for some milliseconds after a call and would take a core from the other
# side.
_SETTLE = 0.01
_SLICE = 0.02


def cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def has_amx() -> bool:
    return {"amx_tile", "amx_bf16"} <= cpu_flags()


def prepare(isa: str = "") -> str:
    """Sets the environment of both sides and returns a sentence about it.

    oneDNN inside torch trusts a CPUID leaf about AMX that some virtual machines leave empty, and
    crashes. A child process tests for that; only then torch runs without AMX.
    """
    if "torch" in sys.modules:
        raise RuntimeError("prepare: torch has been imported already")
    os.environ.update(FORCED.get(isa, {}))
    if isa:
        return f"both sides are limited to {isa}"
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return f"ONEDNN_MAX_CPU_ISA is {os.environ['ONEDNN_MAX_CPU_ISA']}"
    if not has_amx():
        return ""
    status = subprocess.run([sys.executable, "-c", _BF16_PRODUCT], capture_output=True).returncode
    if status >= 0:
        return "torch may use AMX"
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
    return f"torch's bf16 product dies of signal {-status} here, so it runs without AMX"


def import_torch() -> Any:
    try:
        import torch
    except ImportError:
        sys.exit(
            "This benchmark compares with torch, which this Python does not have. `make bench` "
            "sets up one that "
            "does, or: pip install -r packaging/requirements-test.txt"
        )
    return torch


def interleaved(
    calls: list[Callable[[], object]], rounds: int = 5, seconds: float = 0.5, most: float = 8
) -> list[float]:
    """The best time of each call, which has been made once before: the best is the least disturbed.

    The calls alternate, so that a machine that slows down slows all of them: at least `rounds`
    times and `seconds` in all, but at most `most` seconds. A time slice of a short call has many
    calls.
    """
    best, spent, done = [math.inf] * len(calls), 0.0, 0
    while done == 0 or (spent < most and (done < rounds or spent < seconds)):
        for n, call in enumerate(calls):
            time.sleep(_SETTLE)
            if best[n] < _SLICE:
                call()
            elapsed = 0.0
            while elapsed == 0 or (elapsed < _SLICE and elapsed + best[n] < _SLICE):
                begin = time.perf_counter()
                call()
                took = time.perf_counter() - begin
                best[n] = min(best[n], took)
                elapsed += took
            spent += elapsed
        done += 1
    return best


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def some_of(
    parser: argparse.ArgumentParser, name: str, given: str, known: Collection[str]
) -> list[str]:
    """The names in an option's list, each of them one that is known."""
    chosen = given.split(",")
    for x in set(chosen) - set(known):
        parser.error(f"{name}: '{x}'; allowed are {', '.join(known)}")
    return chosen


def sections_parser(
    doc: str, sections: Collection[str], dtypes: Collection[str], output: str
) -> argparse.ArgumentParser:
    """The options that the benchmarks in sections have in common."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--sections", default=",".join(sections), help="some of these")
    parser.add_argument("--dtypes", default=",".join(dtypes), help="some of these")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", default=output)
    return parser


def parse_sections(
    parser: argparse.ArgumentParser, sections: Collection[str], dtypes: Collection[str]
) -> argparse.Namespace:
    given = parser.parse_args()
    given.sections = some_of(parser, "--sections", given.sections, sections)
    given.dtypes = some_of(parser, "--dtypes", given.dtypes, dtypes)
    return given


def reached(good: bool) -> str:
    return "reached" if good else "MISSED"


def write_json(path: str, report: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        json.dump(report, file, indent=1)
