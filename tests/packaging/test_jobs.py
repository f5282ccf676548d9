"""MAX_JOBS, and its default."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


def test_max_jobs() -> None:
    assert jobs.choose({"MAX_JOBS": "7"}) == (7, "MAX_JOBS")


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "99999"])
def test_invalid_max_jobs(text: str) -> None:
    with pytest.raises(ValueError, match=f"MAX_JOBS is '{text}'; it must be a whole number"):
        jobs.choose({"MAX_JOBS": text})


@pytest.mark.parametrize(
    ("cores", "memory", "count"),
    [(16, 64.0, 16), (16, 6.0, 4), (16, 0.5, 1), (4, None, 4), (1, 100.0, 1)],
)
def test_default_number_of_jobs(cores: int, memory: float | None, count: int) -> None:
    assert jobs.from_machine(cores, memory) == count


def test_free_memory(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text(
        "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:    4194304 kB\n"
    )
    assert jobs.free_memory_gib(path) == 4.0
    assert jobs.free_memory_gib(tmp_path / "none") is None
