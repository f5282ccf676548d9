"""rocflash.distributed with ranks that make different calls, reject their arguments, end or do not
call.

Every rank has to raise an error that names rank and argument, and the group has to work afterwards.
None may be aborted by its transport, and none may wait longer than the group's timeout.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Optional

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

import rocflash
import rocflash.distributed as rfd
from rocflash.distributed import consistency


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    found = Ranks(3)
    yield found
    found.close()


INT = torch.int32
# Arguments of some ranks that differ from {"method": "ring", "causal": True} on 8 rows, 2 key
# heads, float32.
DIFFERENCES: list[tuple[dict[int, dict[str, Any]], str]] = [
    (
        {1: {"softcap": 3.0}},
        "rank 1: softcap is 3.0, but 0.0 on rank 0; it must be the same on all ranks",
    ),
    ({2: {"causal": False}}, "rank 2: causal is False, but True on rank 0"),
    (
        {1: {"heads": 4}},
        "rank 1: k is float32 of shape (1, rows, 4, 8) on cpu, but float32 of shape (1, rows, 2, "
        "8)",
    ),
    ({2: {"dtype": torch.float16}}, "rank 2: q is float16"),
    ({1: {"layout": "striped"}}, "rank 1: layout is 'striped', but 'zigzag' on rank 0"),
    ({1: {"method": "auto"}}, "rank 1: method is 'auto', but 'ring' on rank 0"),
    ({1: {"rows": 9}}, "rank 1: q has 9 rows; the layout of 24 rows gives it 8, and rank 0 has 8"),
    ({0: {"rows": 5}}, "rank 1: q has 8 rows; the layout of 15 rows gives it 5, and rank 0 has 5"),
    (
        {0: {"seqused_k": torch.full((1,), 3, dtype=INT)}},
        "rank 1: seqused_k is None, but int32 of shape (1) on cpu with [3]",
    ),
    ({2: {"window": (4, 0)}}, "rank 2: window is (4, 0), but (-1, -1) on rank 0"),
    (
        {1: {"bias": torch.zeros(1, 4, 8, 24)}},
        "rank 1: bias is float32 of shape (1, 4, rows, 24) on cpu, but None on rank 0",
    ),
    # Rejected by one rank alone.
    ({1: {"sinks": torch.zeros(3)}}, "sinks has shape (3,); it must be (4,)"),
    ({2: {"heads": 3}}, "k has 3 heads; q's 4 heads must be a multiple of them"),
    ({0: {"length": 40}}, "q has 8 rows; rank 0 of 3 holds"),
    ({1: {"softcap": "much"}}, "softcap is 'much'"),
]


def call_with(changed: dict[int, dict[str, Any]], check: Optional[bool]) -> list[str]:
    """The message of a call whose arguments differ on some ranks, after and before calls that
    agree.
    """
    messages = []
    for differing in (False, True, False):
        given: dict[str, Any] = {"causal": True, "method": "ring"}
        rows, heads, dtype = 8, 2, torch.float32
        for name, x in changed.get(dist.get_rank(), {}).items() if differing else ():
            if name == "rows":
                rows = x
            elif name == "heads":
                heads = x
            elif name == "dtype":
                dtype = x
            else:
                given[name] = x
        q, k = torch.zeros(1, rows, 4, 8, dtype=dtype), torch.zeros(1, rows, heads, 8, dtype=dtype)
        try:
            rfd.attention(q, k, k.clone(), check=check, **given)
            messages.append("")
        except (rocflash.InvalidArgument, TypeError) as error:
            messages.append(str(error))
    return messages


@pytest.mark.parametrize(
    "changed, message", DIFFERENCES, ids=[message[:40] for _, message in DIFFERENCES]
)
def test_differences_between_ranks_are_named(three: Ranks, changed: Any, message: str) -> None:
    """On every rank, although the calls before have made all signatures but one known."""
    for rank, found in enumerate(three.run(call_with, changed, None)):
        assert found[0] == found[2] == "" and message in found[1], (rank, found)
        # The other ranks name the one that rejected its arguments.
        if not message.startswith("rank"):
            (culprit,) = changed
            assert found[1].startswith(f"rank {culprit}: ") == (rank != culprit)


def test_checking_on_every_call(three: Ranks) -> None:
    for found in three.run(call_with, {1: {"softcap": 3.0}}, True):
        assert found[0] == found[2] == "" and found[1].startswith("rank 1: softcap is 3.0")
    three.run(set_debug, "1")
    random = {rank: {"dropout_p": 0.5, "rng_state": torch.tensor([rank, 0])} for rank in range(3)}
    for found in three.run(call_with, random, None):
        assert "rank 1: rng_state is int64 of shape (2) on cpu with [1, 0], but" in found[1]
    three.run(set_debug, "")
    # Ranks may draw dropout from seeds of their own.
    for found in three.run(call_with, random, None):
        assert found == ["", "", ""]


def set_debug(value: str) -> None:
    os.environ["ROCFLASH_DISTRIBUTED_DEBUG"] = value


def once_per_signature() -> list[Any]:
    """As over NCCL: digests go through the transport of the tensors when a signature is new."""
    counted = [0]
    gather = consistency.comm.all_gather_bytes

    def counting(*arguments: Any) -> Any:
        counted[0] += 1
        return gather(*arguments)

    kept = consistency._host_transport
    consistency._host_transport = lambda *_: False
    consistency.comm.all_gather_bytes = counting
    try:
        q = torch.zeros(1, 6, 4, 8)
        for _ in range(3):
            rfd.attention(q, q, q, method="ring", softcap=1.25)
        first = counted[0]
        try:
            rfd.attention(q, q, q, method="ring", softcap=1.5 + dist.get_rank())
            message = ""
        except rocflash.InvalidArgument as error:
            message = str(error)
        rfd.attention(q, q, q, method="ring", softcap=1.25)
        return [first, counted[0], message]
    finally:
        consistency._host_transport, consistency.comm.all_gather_bytes = kept, gather


def test_signatures_are_compared_once_if_the_host_would_wait(three: Ranks) -> None:
    for first, total, message in three.run(once_per_signature):
        assert (first, total) == (1, 3)
        assert message.startswith("rank 1: softcap is 2.5, but 1.5 on rank 0")


def other_calls() -> list[str]:
    """Gradients, decode, unsharding, and one rank in another call than its peers."""
    rank = dist.get_rank()
    messages = []

    def gradients() -> None:
        q, k = (
            torch.zeros(1, 4, 4, 8, requires_grad=True),
            torch.zeros(1, 4, 4, 8, requires_grad=rank != 1),
        )
        rfd.attention(q, k, k, method="ring").sum().backward()

    def decode() -> None:
        cache = torch.zeros(1, 4, 2, 8 if rank != 2 else 16)
        rfd.decode(torch.zeros(1, 1, 2, cache.shape[3]), cache, cache.clone(), cache_seqlens=3)

    def appending() -> None:
        q, cache = torch.zeros(1, 1, 2, 8), torch.zeros(1, 4, 2, 8)
        table = torch.full((1, 1), -1 if rank == 2 else 0, dtype=torch.int32)
        # Striped: position 5 is of rank 2, whose table has no page for it.
        rfd.decode(q, cache, cache.clone(), cache_seqlens=5, page_table=table, k=q, v=q)

    def unsharding() -> None:
        rfd.unshard_sequence(torch.zeros(2, 3, 4 + (rank == 1)))

    def mixed() -> None:
        q = torch.zeros(1, 4, 2, 8)
        if rank == 1:
            rfd.decode(q, q, q.clone(), cache_seqlens=3)
        else:
            rfd.attention(q, q, q)

    for call in (gradients, decode, appending, unsharding, mixed):
        try:
            call()
            messages.append("")
        except rocflash.InvalidArgument as error:
            messages.append(str(error))
    return messages


def test_different_calls_on_ranks(three: Ranks) -> None:
    wanted = (
        "rank 1: requires_grad is q, but q, k, v on rank 0",
        "rank 2: q is float32 of shape (1, 1, 2, 16) on cpu, but float32 of shape (1, 1, 2, 8) on "
        "cpu on rank 0",
        "page_table has [-1] for new keys",
        "rank 1: x is float32 of shape (rows, 2, 5) on cpu, but",
        "rank 1: calls decode, but rank 0 calls attention; all ranks of a group must make the "
        "same calls",
    )
    for found in three.run(other_calls):
        for text, message in zip(found, wanted, strict=True):
            assert message in text


_pairs: list[Any] = []


def make_pairs() -> None:
    for first in (0, 2):
        _pairs.append(dist.new_group([first, first + 1], timeout=timedelta(seconds=3)))


def attend_with_failures() -> str:
    """Rank 1 ends while rank 0 needs it.

    Rank 3 stays away from rank 2, whose call compares no arguments.
    """
    rank = dist.get_rank()
    where = {"group": _pairs[rank // 2], "check": None if rank < 2 else False, "method": "ring"}
    q = torch.zeros(1, 64, 4, 8, requires_grad=True)
    rfd.attention(q, q, q, **where)
    if rank == 1:
        os._exit(1)
    if rank == 3:
        return "stays away"
    rfd.attention(q, q, q, **where).sum().backward()
    return "computed"


def test_a_failing_rank_does_not_hang_its_peers() -> None:
    """Ended or absent: its peer raises an error that names it, at the latest after the group's
    timeout.
    """
    ranks = Ranks(4)
    try:
        ranks.run(make_pairs)
        start = time.monotonic()
        for pipe in ranks._pipes:
            pipe.send((attend_with_failures, ()))
        for rank, what in (
            (0, "the comparison of arguments of attention (from rank 1)"),
            (2, "hop 1 of keys and values (to rank 1, from rank 1)"),
        ):
            assert ranks._pipes[rank].poll(30)
            kind, *rest = ranks._pipes[rank].recv()
            assert kind == "raised" and "RankError" in rest[0], rest
            assert f"rank 0 of 2: {what} failed" in rest[1]
        assert time.monotonic() - start < 20
    finally:
        ranks.close()


def gradients_by_reference() -> str:
    q = torch.zeros(1, 4, 4, 8, requires_grad=True)
    out = rfd.attention(q, q, q, method="ring", backend="reference")
    try:
        out.sum().backward()
        return ""
    except rocflash.Unsupported as error:
        return str(error)


def test_ring_gradients_by_the_reference_are_refused(three: Ranks) -> None:
    """It computes the softmax of a block's own keys, not that of the lse."""
    for found in three.run(gradients_by_reference):
        assert found.startswith("backend: reference; it ignores the lse")
