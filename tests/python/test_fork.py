"""After fork() parent and children compute concurrently, with separate memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rocflash
from rocflash._c import workspace

ROUNDS, CHILDREN = 60, 3
# Causal f32 calls over this many keys need a workspace that they write and read.
SHAPES = ((2, 40, 4, 32), (2, 60, 2, 32), (2, 60, 2, 32))

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def problem(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype("float32") for s in SHAPES]


def by_numpy(arrays: list[np.ndarray]) -> np.ndarray:
    return rocflash.attention(*arrays, causal=True)


def by_torch(arrays: list[np.ndarray]) -> np.ndarray:
    """A call on the fast path."""
    return rocflash.attention(*map(torch.from_numpy, arrays), causal=True).numpy()


def by_plan(arrays: list[np.ndarray]) -> np.ndarray:
    """A call with sinks, which the fast path does not support."""
    sinks = torch.zeros(4)
    return rocflash.attention(*map(torch.from_numpy, arrays), causal=True, sinks=sinks).numpy()


def by_gradients(arrays: list[np.ndarray]) -> np.ndarray:
    leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
    rocflash.attention(*leaves, causal=True, sinks=torch.zeros(4)).sum().backward()
    return torch.cat([x.grad.flatten() for x in leaves]).numpy()


WAYS = [by_numpy, by_torch, by_plan, by_gradients]
Way = Callable[[list[np.ndarray]], np.ndarray]


def wrong(way: Way, seed: int, expected: np.ndarray, rounds: int = ROUNDS) -> int:
    arrays = problem(seed)
    return sum(not np.array_equal(way(arrays), expected) for _ in range(rounds))


def forked(work: Callable[[], bool]) -> int:
    """The child's process number; it ends with 0 if the work was good, and in any case soon."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)  # a child that hangs is a failure, not a wait
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return child


def ended_well(child: int) -> bool:
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_parent_and_children_concurrently(way: Way) -> None:
    expected = [way(problem(seed)) for seed in range(CHILDREN + 1)]  # and memory is kept now
    ready, start = os.pipe()

    def child(seed: int) -> Callable[[], bool]:
        def work() -> bool:
            os.close(start)
            os.read(ready, 1)  # returns when the parent has closed the other end
            return wrong(way, seed, expected[seed]) == 0

        return work

    children = [forked(child(seed)) for seed in range(1, CHILDREN + 1)]
    os.close(start)
    os.close(ready)
    here = wrong(way, 0, expected[0])
    assert [ended_well(c) for c in children] == [True] * CHILDREN
    assert here == 0


def test_fork_while_another_thread_calls() -> None:
    """The thread goes on in the parent; the child has none of its calls and makes its own."""
    expected = {way: [way(problem(seed)) for seed in (0, 1)] for way in WAYS}
    stop = threading.Event()
    found: list[int] = []

    def busy() -> None:
        while not stop.is_set():
            found.append(sum(wrong(way, 0, expected[way][0], 3) for way in WAYS))

    def work() -> bool:
        return sum(wrong(way, 1, expected[way][1], 5) for way in WAYS) == 0

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        good = [ended_well(forked(work)) for _ in range(8)]
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert all(good) and len(found) > 0 and sum(found) == 0


def test_workspaces_are_private_and_not_inherited() -> None:
    by_numpy(problem(0))
    assert workspace._free
    kept = workspace.take(100)
    memory = kept._memory
    assert memory is not None
    memory[:4] = b"ours"

    def work() -> bool:
        memory[:4] = b"mine"
        return not workspace._free

    assert ended_well(forked(work))
    assert memory[:4] == b"ours"
    workspace.give(kept)


def _worked(seed: int) -> list[np.ndarray]:
    return [way(problem(seed)) for way in WAYS]


def test_a_pool_of_forked_workers() -> None:
    expected = [_worked(seed) for seed in range(8)]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.map_async(_worked, range(8), chunksize=1).get(timeout=120)
    for a, b in zip(found, expected):
        assert all(np.array_equal(x, y) for x, y in zip(a, b))


class Dataset(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, n: int) -> Any:
        return torch.from_numpy(by_numpy(problem(n))), torch.from_numpy(by_plan(problem(n)))


def test_a_data_loaders_workers() -> None:
    """While the parent computes too, as a training loop does."""
    expected = [by_numpy(problem(n)) for n in range(12)]
    loader = torch.utils.data.DataLoader(
        Dataset(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    count = 0
    for n, (a, b) in enumerate(loader):
        assert np.array_equal(by_numpy(problem(n)), expected[n])
        assert np.array_equal(a.numpy(), expected[n])
        np.testing.assert_allclose(b.numpy(), by_plan(problem(n)), rtol=0, atol=1e-5)
        count += 1
    assert count == 12
