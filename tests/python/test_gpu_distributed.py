"""rocflash.distributed on a GPU: 2 and 4 processes that share one GPU, over gloo, each on a stream
of its own.

Skipped without a GPU that torch can use. ROCFLASH_TEST_DEVICE=cpu runs the same cases on the CPU,
to test the tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import distributed_cases as cases
import pytest
import torch
from ranks import Ranks
from test_distributed import by_ranks, listed, name_of
from test_distributed_integration import check_decode

DEVICE = os.environ.get("ROCFLASH_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch has no GPU here"
)


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    found = Ranks(4)
    for size in (2, 3):
        found.run(cases.make_group, size)
    yield found
    found.close()


@pytest.mark.parametrize("case", listed()[::5], ids=name_of)
def test_against_the_reference(four: Ranks, case: dict[str, Any]) -> None:
    case = {**case, "device": DEVICE}
    found = by_ranks(four, case)
    # The maximum over elements varies: average it over sixteen draws.
    if cases.over_the_bound(found):
        draws = [found] + [
            by_ranks(four, {**case, "seed": 10_000 * n + case["seed"]}) for n in range(1, 16)
        ]
        wrong = cases.over_the_bound_on_average(draws)
        assert not wrong, wrong


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    found = Ranks(2)
    yield found
    found.close()


@pytest.mark.parametrize("layout, sq", [("striped", 1), ("contiguous", 3)])
def test_decode(two: Ranks, layout: str, sq: int) -> None:
    check_decode(two, layout, sq, DEVICE)
