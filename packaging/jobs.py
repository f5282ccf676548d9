"""The number of parallel compile jobs: MAX_JOBS, else what cores and free memory allow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

# The peak memory of the largest kernel compilation.
GIB_PER_JOB = 1.5


def free_memory_gib(meminfo: Path = Path("/proc/meminfo")) -> float | None:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) / 2**20 if found else None


def from_machine(cores: int, memory_gib: float | None) -> int:
    by_memory = cores if memory_gib is None else int(memory_gib / GIB_PER_JOB)
    return max(1, min(cores, by_memory))


def choose(environment: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """The number of jobs, and its source."""
    given = environment.get("MAX_JOBS", "")
    if given:
        if not re.fullmatch(r"[1-9][0-9]{0,3}", given):
            raise ValueError(f"MAX_JOBS is {given!r}; it must be a whole number from 1 to 9999")
        return int(given), "MAX_JOBS"
    cores, memory = len(os.sched_getaffinity(0)), free_memory_gib()
    free = "unknown" if memory is None else f"{memory:.1f} GiB"
    return from_machine(cores, memory), f"{cores} cores, {free} of free memory"
