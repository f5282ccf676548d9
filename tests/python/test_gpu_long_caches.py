"""Decode over long KV caches on a GPU: split-KV and the combine kernel.

Against torch in double, by the project's rule. Needs a GPU that torch can use; skipped without one.
"""

from __future__ import annotations

import pytest
import torch

import rocflash

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU here")

HEADS, KV_HEADS = 8, 2


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, used: list[int]) -> torch.Tensor:
    """Causal at the end, in the dtype of q."""
    out = torch.zeros_like(q)
    queries, heads, d = q.shape[1:]
    for n, keys in enumerate(used):
        if keys == 0:
            continue
        rows = [x[n, :keys].repeat_interleave(heads // x.shape[2], 1) for x in (k, v)]
        scores = torch.einsum("qhd,khd->hqk", q[n], rows[0]) / d**0.5
        last = torch.arange(queries, device=q.device)[:, None] + keys - queries
        hidden = torch.arange(keys, device=q.device)[None] > last
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
        out[n] = torch.einsum("hqk,khd->qhd", weights, rows[1])
    return out


def agree(found: torch.Tensor, given: tuple[torch.Tensor, ...], used: list[int]) -> None:
    true = exact(*(x.double() for x in given), used)
    baseline = (exact(*given, used).double() - true).abs().max().item()
    assert (found.double() - true).abs().max().item() <= 2 * baseline + 1e-6


class Cache:
    def __init__(self, keys: int, d: int, dtype: torch.dtype, queries: int, size: int) -> None:
        torch.manual_seed(keys + d + queries + size)
        self.q = torch.randn(4, queries, HEADS, d, dtype=dtype, device="cuda")
        self.k, self.v = torch.randn(2, 4, keys, KV_HEADS, d, dtype=dtype, device="cuda").unbind()
        self.arguments: dict = {"causal": True}
        self.pages = self.k, self.v
        if size:
            table = torch.randperm(4 * keys // size, device="cuda")
            self.arguments["page_table"] = table.view(4, -1).int()
            self.pages = tuple(
                torch.empty_like(x)
                .view(-1, size, KV_HEADS, d)
                .index_copy_(0, table, x.reshape(-1, size, KV_HEADS, d))
                for x in (self.k, self.v)
            )

    def decode(self, used: torch.Tensor, **more: object) -> torch.Tensor:
        return rocflash.decode(self.q, *self.pages, cache_seqlens=used, **self.arguments, **more)[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [64, 128, 120])
@pytest.mark.parametrize("queries, size, splits", [(1, 0, 0), (1, 16, 7), (5, 7, 0), (40, 64, 3)])
def test_all_lengths(dtype: torch.dtype, d: int, queries: int, size: int, splits: int) -> None:
    cache = Cache(9 * 7 * 64 * 4, d, dtype, queries, size)
    used = [0, 16128 - 1, 65, 9001]
    lengths = torch.tensor(used, dtype=torch.int32, device="cuda")
    found = cache.decode(lengths, num_splits=splits)
    agree(found, (cache.q, cache.k, cache.v), used)
    assert torch.equal(found, cache.decode(lengths, num_splits=splits))  # the same bits


def test_non_finite_values() -> None:
    cache = Cache(16384, 128, torch.bfloat16, 1, 0)
    used = torch.full((4,), 16384, dtype=torch.int32, device="cuda")
    cache.v[1, 12345, 0, 7] = torch.inf
    cache.v[2, 5000, 1] = torch.nan
    cache.k[3, 16383] = torch.inf
    found = cache.decode(used, num_splits=5)
    true = exact(*(x.double() for x in (cache.q, cache.k, cache.v)), used.tolist())
    assert torch.equal(found.isnan()[:3], true.isnan()[:3])
    assert torch.equal(found[:3].isinf(), true[:3].isinf())
    assert found[1, 0, 0, 7] == torch.inf and found[0].isfinite().all()
    assert found[2, 0, : HEADS // 2].isfinite().all() and found[2, 0, HEADS // 2 :].isnan().all()


def test_a_graph_replayed_with_other_lengths() -> None:
    cache = Cache(32768, 128, torch.bfloat16, 2, 16)
    used = torch.full((4,), 32768, dtype=torch.int32, device="cuda")
    cache.decode(used)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [cache.decode(used) for _ in range(3)]
    for lengths in ([32768] * 4, [1, 0, 32767, 300], [17, 20000, 64, 2], [0, 0, 0, 0]):
        used.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        agree(found[0], (cache.q, cache.k, cache.v), lengths)
        assert all(torch.equal(found[0], x) for x in found[1:])
