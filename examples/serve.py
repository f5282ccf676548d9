"""Serves a small transformer: a paged cache, continuous batching, chunked prefill and decode in the same call.

    python examples/serve.py [device] [--cache float16] [--requests 12] [--seed 0]

Requests of different lengths arrive over time. Each step takes whatever is there: one token of every running
sequence, and pieces of the prompts that wait, packed into one call per layer. `rocflash.decode` rotates q and k,
appends the new keys and values to their pages and attends over them. Pages of finished requests are used again at once.

Every request is then generated once more by itself, with plain attention over all of its tokens, and must give the
same tokens. The model is random, with weights from the seed.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

import rocflash

VOCABULARY, LAYERS, HEADS, KV_HEADS, SIZE = 96, 3, 8, 2, 32
WIDTH = HEADS * SIZE
PAGE, PAGES = 16, 40
TOKENS_PER_STEP = 48  # of all sequences together


class Model:
    """Embedding, layers of attention and a gated multilayer perceptron, and the embedding again."""

    def __init__(self, seed: int, device: str) -> None:
        source = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, generator=source) * columns**-0.5).to(device)

        self.embedding = weight(VOCABULARY, WIDTH)
        self.layers = [
            {
                "qkv": weight((HEADS + 2 * KV_HEADS) * SIZE, WIDTH),
                "out": weight(WIDTH, WIDTH),
                "up": weight(4 * WIDTH, WIDTH),
                "down": weight(WIDTH, 2 * WIDTH),
            }
            for _ in range(LAYERS)
        ]
        angle = torch.outer(torch.arange(1024.0), 10000 ** -torch.linspace(0, 1, SIZE // 2))
        self.cos, self.sin = angle.cos().to(device), angle.sin().to(device)

    def __call__(self, tokens: Tensor, attend) -> Tensor:
        """The logits of (n,) tokens. attend(layer, q, k, v) sees (n, heads, size), not rotated yet."""
        x = self.embedding[tokens]
        for n, layer in enumerate(self.layers):
            projected = (rms_norm(x, (WIDTH,)) @ layer["qkv"].T).unflatten(-1, (-1, SIZE))
            q, k, v = projected.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
            x = x + attend(n, q, k, v).flatten(1) @ layer["out"].T
            up, gate = (rms_norm(x, (WIDTH,)) @ layer["up"].T).chunk(2, dim=-1)
            x = x + (up * silu(gate)) @ layer["down"].T
        return rms_norm(x, (WIDTH,)) @ self.embedding.T


@dataclass
class Request:
    prompt: list[int]
    wanted: int  # tokens
    arrives: int  # at this step
    told: list[int] = field(default_factory=list)
    done: int = 0  # tokens in the cache
    pages: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.told

    @property
    def longest(self) -> int:
        return len(self.prompt) + self.wanted


class Server:
    """Runs requests together. A request starts once there are pages for all of its tokens."""

    def __init__(self, model: Model, device: str, cache: torch.dtype) -> None:
        self.model, self.device = model, device
        shape = (LAYERS, PAGES, PAGE, KV_HEADS, SIZE)
        self.k, self.v = (torch.zeros(shape, dtype=cache, device=device) for _ in "kv")
        self.free = list(range(PAGES))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.most_together = 0

    def step(self) -> None:
        self._admit()
        self.most_together = max(self.most_together, len(self.running))
        # Decode first, one token each; prompts share what is left of the step.
        left, taken = TOKENS_PER_STEP, []
        for request in sorted(self.running, key=lambda r: len(r.tokens) - r.done):
            count = min(left, len(request.tokens) - request.done)
            if count > 0:
                taken.append((request, count))
                left -= count
        logits = self._forward(taken)
        for (request, count), last in zip(taken, logits):
            request.done += count
            if request.done == len(request.tokens):
                request.told.append(int(last.argmax()))
        for request in [r for r in self.running if len(r.told) == r.wanted]:
            self.running.remove(request)
            self.free += request.pages

    def _admit(self) -> None:
        while self.waiting:
            needed = -(-self.waiting[0].longest // PAGE)
            if needed > len(self.free):
                return
            request = self.waiting.popleft()
            request.pages = [self.free.pop() for _ in range(needed)]
            self.running.append(request)

    def _forward(self, taken: list[tuple[Request, int]]) -> Tensor:
        """The logits behind the last token of each."""
        pieces = [r.tokens[r.done : r.done + count] for r, count in taken]
        tokens = torch.tensor([token for piece in pieces for token in piece], device=self.device)
        ends = torch.tensor([len(p) for p in pieces]).cumsum(0)
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), ends))
        table = torch.zeros(len(taken), max(len(r.pages) for r, _ in taken), dtype=torch.int32)
        for n, (request, _) in enumerate(taken):
            table[n, : len(request.pages)] = torch.tensor(request.pages)
        told = {
            "cu_seqlens_q": starts.int().to(self.device),
            "cu_seqlens_k_new": starts.int().to(self.device),
            "cache_seqlens": torch.tensor([r.done for r, _ in taken]).int().to(self.device),
            "page_table": table.to(self.device),
            "max_seqlen_q": max(len(p) for p in pieces),
        }

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return rocflash.decode(
                q, self.k[layer], self.v[layer], k=k.to(self.k.dtype), v=v.to(self.v.dtype),
                rotary_cos=self.model.cos, rotary_sin=self.model.sin, rotary_interleaved=False,
                causal=True, want_lse=False, **told,
            )[0]  # fmt: skip

        return self.model(tokens, attend)[(ends - 1).to(self.device)]


def alone(model: Model, request: Request, device: str, cache: torch.dtype) -> list[int]:
    """The same tokens, each from all that come before it, with plain attention."""
    told: list[int] = []

    def turned(x: Tensor) -> Tensor:
        cos, sin = model.cos[: len(x), None], model.sin[: len(x), None]
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = turned(q)
        k, v = (x.to(q.dtype).repeat_interleave(HEADS // KV_HEADS, 1) for x in (turned(k.to(cache)), v.to(cache)))
        scores = torch.einsum("qhd,khd->hqk", q, k) * SIZE**-0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=device).triu(1)
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)

    for _ in range(request.wanted):
        tokens = torch.tensor(request.prompt + told, device=device)
        told.append(int(model(tokens, attend)[-1].argmax()))
    return told


def requests(count: int, seed: int) -> list[Request]:
    source = torch.Generator().manual_seed(seed + 1)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=source))

    return [
        Request(
            prompt=torch.randint(VOCABULARY, (number(1, 90),), generator=source).tolist(),
            wanted=number(4, 24),
            arrives=number(0, 20),
        )
        for _ in range(count)
    ]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("device", nargs="?", default="cpu")
    parser.add_argument("--cache", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    cache = getattr(torch, given.cache)
    model = Model(given.seed, given.device)
    server = Server(model, given.device, cache)
    all_of_them = requests(given.requests, given.seed)
    to_come = deque(sorted(all_of_them, key=lambda r: r.arrives))
    steps, begin = 0, time.perf_counter()
    while to_come or server.waiting or server.running:
        while to_come and to_come[0].arrives <= steps:
            server.waiting.append(to_come.popleft())
        if server.waiting or server.running:
            server.step()
        steps += 1
    took = time.perf_counter() - begin
    total = sum(len(r.tokens) for r in all_of_them)
    wrong = [n for n, r in enumerate(all_of_them) if r.told != alone(model, r, given.device, cache)]
    print(
        f"{len(all_of_them)} requests, {total} tokens in {steps} steps and {took:.2f} s on {given.device}, "
        f"{given.cache} cache; up to {server.most_together} at a time"
    )
    if wrong:
        raise SystemExit(f"requests {wrong}: tokens differ from those of plain attention")
    print("tokens are those of plain attention")


if __name__ == "__main__":
    main()
