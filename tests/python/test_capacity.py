"""Lengths beyond the block table, on GPUs and with a fake one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flash_attn import flash_attn_with_kvcache
from rocflash._c.options import CacheCall
from rocflash._torch import capacity

BEYOND = "^block_table has a capacity of 64 keys per sequence; sequence 1 has 65"


class Event:
    happened = False

    def query(self) -> bool:
        return Event.happened


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    capacity._calls.clear()
    capacity._pending.clear()
    Event.happened = False
    if not torch.cuda.is_available():
        monkeypatch.setattr(capacity, "_copied", lambda lengths: (Event(), lengths.clone()))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    yield
    capacity._calls.clear()
    capacity._pending.clear()


def check(lengths: Any, new: int = 0, cu: Any = None) -> None:
    capacity.check_lengths(torch.tensor(lengths).int(), new, cu, 64, "block_table")


def test_the_first_calls_of_a_kind_are_checked_at_once() -> None:
    check([5, 64])
    for _ in range(2):  # also after a refusal
        with pytest.raises(RuntimeError, match=BEYOND):
            check([5, 61], 4)
        with pytest.raises(RuntimeError, match=BEYOND):
            check([5, 61], 0, torch.tensor([0, 2, 6]).int())
    check([60, 60], 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="uses fake events")
def test_later_calls_are_checked_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(capacity._AT_ONCE):
        check([5, 64])
    monkeypatch.setattr(torch.Tensor, "cpu", None)  # nothing waits any more
    for _ in range(capacity._EVERY):
        check([5, 65])
    assert len(capacity._pending) == 1
    check([5, 6])  # the lengths have not arrived
    Event.happened = True
    with pytest.raises(RuntimeError, match=BEYOND + ".* in an earlier call"):
        check([5, 6])
    check([5, 6])


def test_captured_calls_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    check([5, 65])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(capacity, "_MODE", "0")
    check([5, 65])
    monkeypatch.setattr(capacity, "_MODE", "1")
    check([5, 64])
    with pytest.raises(RuntimeError, match=BEYOND):
        check([5, 65])


def test_one_length_is_checked_on_the_host() -> None:
    cache, table = torch.empty(8, 16, 2, 8), torch.zeros(2, 4).int()
    for length, new in ((65, None), (61, torch.empty(2, 4, 2, 8))):
        call = CacheCall(
            cache_seqlens=length, k=new, page_table=table, page_table_name="block_table"
        )
        with pytest.raises(RuntimeError, match="^block_table has a capacity of 64 keys .* has 65"):
            capacity.check(cache, call)
        capacity.check(cache, call._replace(cache_seqlens=length - 1))


def test_the_number_of_kinds_is_bounded() -> None:
    for n in range(capacity._MAX_KINDS + 20):
        capacity.check_lengths(torch.tensor([1]).int(), n, None, 1000, "block_table")
    assert len(capacity._calls) <= capacity._MAX_KINDS


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
        ),
    ],
)
def test_lengths_beyond_the_block_table_are_rejected(device: str) -> None:
    """As upstream's test_flash_attn_kvcache_paged_block_table_bounds."""
    q = torch.randn(2, 1, 4, 64, device=device).half()
    pages = torch.randn(8, 16, 4, 64, device=device).half()
    table = torch.arange(8, device=device).view(2, 4).int()
    lengths = torch.tensor([5, 64], device=device).int()
    flash_attn_with_kvcache(q, pages, pages.clone(), cache_seqlens=lengths, block_table=table)
    before = pages.clone()
    for beyond, new in ((lengths + 1, None), (lengths, q), (65, None), (64, q)):
        with pytest.raises(RuntimeError, match="block_table"):
            flash_attn_with_kvcache(
                q, pages, before.clone(), k=new, v=new, cache_seqlens=beyond, block_table=table
            )
    assert torch.equal(pages, before)
