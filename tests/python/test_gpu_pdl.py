"""Programmatic dependent launches: each must read everything that the preceding launch has written.

On Hopper decode is launched with PDL, and so are the second and third kernel of backward. Here the
result of each call is the cache, the query or the incoming gradient of the next. The bits must be
those of the same calls with a synchronization between them. Needs a GPU that torch can use; skipped
without one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import rocflash

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU here")

B, HEADS, KEYS, STEPS = 2, 8, 512, 96
BACKLOG = 20_000_000  # cycles that the device sleeps, so that launches queue up


class Chain:
    """Calls of which each needs what the one before it has written."""

    def __init__(self, kind: str, d: int, seed: int) -> None:
        torch.manual_seed(seed)

        def made(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")

        self.kind = kind
        self.begun = KEYS - STEPS - 1
        self.first = made(2, B, KEYS, HEADS, d)
        self.k, self.v = self.first[0].clone(), self.first[1].clone()
        self.new = made(B, STEPS, HEADS, d)
        self.lengths = torch.arange(KEYS, dtype=torch.int32, device="cuda")[:, None].repeat(1, B)
        self.table = torch.randperm(B * KEYS // 16, device="cuda").view(B, -1).int()
        self.q, self.many = self.k[:, :1].clone(), self.k[:, :16].clone()

    def reset(self) -> None:
        self.k.copy_(self.first[0])
        self.v.copy_(self.first[1])
        self.q.copy_(self.k[:, :1])
        self.many.copy_(self.k[:, :16])

    def step(self, n: int) -> None:
        # A scale that lets one key or two decide: a row that is not written yet changes all that
        # follows.
        at, arguments = self.begun + n, {"softmax_scale": 0.2, "want_lse": False}
        if self.kind == "rows":  # the rows that one call writes are the next one's keys
            once, _ = rocflash.decode(self.many, self.k, self.v, **arguments)
            if n % 3 == 0:
                once *= 2  # an ordinary launch between two early ones
            rocflash.decode(self.first[0, :, :16], once, once, out=self.many, **arguments)
        elif self.kind in ("append", "parts"):  # append, decode, decode
            if self.kind == "parts":  # each decode is two launches
                arguments["num_splits"] = 3
            new = self.new[:, n : n + 1]
            once, _ = rocflash.decode(
                self.q, self.k, self.v, k=new, v=self.q, cache_seqlens=self.lengths[at], **arguments
            )
            rocflash.decode(
                once, self.k, self.v, cache_seqlens=self.lengths[at + 1], out=self.q, **arguments
            )
        else:  # "pages": PDL launches only, over pages
            k, v = (x.view(-1, 16, HEADS, x.shape[-1]) for x in (self.k, self.v))
            arguments |= {"page_table": self.table, "cache_seqlens": self.lengths[at]}
            once, _ = rocflash.decode(self.q, k, v, **arguments)
            rocflash.decode(once, k, v, out=self.q, **arguments)

    def run(self, after_each: Callable[[], None] = lambda: None) -> None:
        self.reset()
        for n in range(STEPS):
            self.step(n)
            after_each()

    def results(self) -> list[torch.Tensor]:
        return [x.clone() for x in (self.k, self.v, self.q, self.many)]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize("kind", ["rows", "append", "parts", "pages"])
@pytest.mark.parametrize("d", [64, 128])
def test_chained_launches_read_preceding_results(kind: str, d: int) -> None:
    chain = Chain(kind, d, 1)
    chain.run(torch.cuda.synchronize)
    expected = chain.results()
    assert not any(x.isnan().any() for x in expected)
    for _ in range(10):
        torch.cuda._sleep(BACKLOG)
        chain.run()
        assert same(chain.results(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain.run()
    for n in range(20):
        chain.k.zero_()
        graph.replay()
        if n % 5 == 0:
            graph.replay()  # right after the other one
        assert same(chain.results(), expected)


def test_chained_launches_on_several_streams() -> None:
    chains = [Chain(kind, 128, seed) for seed, kind in enumerate(["rows", "append", "pages"] * 2)]
    expected = []
    for chain in chains:
        chain.run(torch.cuda.synchronize)
        expected.append(chain.results())
    streams = [torch.cuda.Stream() for _ in chains]
    for _ in range(5):
        torch.cuda.synchronize()
        for chain, stream in zip(chains, streams):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(BACKLOG)
                chain.reset()
        for n in range(STEPS):
            for chain, stream in zip(chains, streams):
                with torch.cuda.stream(stream):
                    chain.step(n)
        torch.cuda.synchronize()
        assert all(same(chain.results(), e) for chain, e in zip(chains, expected))


class Gradients:
    """Backward calls whose q, k, v and gradient are results of the preceding call."""

    def __init__(self, d: int, causal: bool, seed: int, lengths: list[int]) -> None:
        torch.manual_seed(seed)
        heads, kv_heads, rows = 8, 2, sum(lengths)
        cu = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
        self.arguments = {"causal": causal, "deterministic": True}
        if len(lengths) > 1:
            self.arguments |= {f"cu_seqlens_{x}": cu for x in "qk"}
            self.arguments |= {f"max_seqlen_{x}": max(lengths) for x in "qk"}
        shape = (rows,) if len(lengths) > 1 else (1, rows)
        self.first = [
            torch.randn(*shape, h, d, dtype=torch.bfloat16, device="cuda")
            for h in (heads, kv_heads, kv_heads, heads)
        ]

    def run(self, after_each: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
        q, k, v, dout = self.first
        for _ in range(STEPS // 8):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            out = rocflash.attention(*leaves, **self.arguments)
            after_each()
            found = torch.autograd.grad(out, leaves, dout)
            after_each()
            # Of about the same size in each step: a row that is not written yet changes all that
            # follows.
            dout, k, v = (x * (y.std() / x.std()).to(x.dtype) for x, y in zip(found, (dout, k, v)))
        return [dout, k, v]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[2048], [512], [700, 64, 1300, 17]])
@pytest.mark.parametrize("d", [64, 128, 192])
def test_chained_gradients_read_preceding_results(d: int, lengths: list[int], causal: bool) -> None:
    chain = Gradients(d, causal, 2, lengths)
    expected = chain.run(torch.cuda.synchronize)
    assert not any(x.isnan().any() for x in expected)
    for _ in range(4):
        torch.cuda._sleep(BACKLOG)
        assert same(chain.run(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain.run()
    for n in range(5):
        captured[0].zero_()
        graph.replay()
        if n % 2 == 0:
            graph.replay()  # right after the other one
        assert same(captured, expected)
