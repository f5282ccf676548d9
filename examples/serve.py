"""Serves a small transformer: paged KV cache, continuous batching, chunked prefill.

    python examples/serve.py [--device auto] [--cache float16] [--requests 12] [--seed 0]

Requests of different lengths arrive over time. Each step batches one token of every running
sequence with chunks of waiting prompts into one varlen call per layer. `rocflash.decode` applies
rotary embedding to q and k, appends the new keys and values to their pages and attends to them.
Pages of finished requests are reused at once.

Every request is then generated again on its own, with naive attention over all of its tokens, and
must give the same tokens. The weights of the model are random, from the seed.
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
from rocflash.self_test import add_device_option, chosen_device

VOCABULARY, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 96, 3, 8, 2, 32
WIDTH = HEADS * HEAD_DIM
PAGE, PAGES = 16, 40
TOKENS_PER_STEP = 48  # over all sequences


class Model:
    """Embedding, layers of attention and a gated MLP, and the tied output embedding."""

    def __init__(self, seed: int, device: str) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(device)

        self.embedding = weight(VOCABULARY, WIDTH)
        self.layers = [
            {
                "qkv": weight((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH),
                "out": weight(WIDTH, WIDTH),
                "up": weight(4 * WIDTH, WIDTH),
                "down": weight(WIDTH, 2 * WIDTH),
            }
            for _ in range(LAYERS)
        ]
        angle = torch.outer(torch.arange(1024.0), 10000 ** -torch.linspace(0, 1, HEAD_DIM // 2))
        self.cos, self.sin = angle.cos().to(device), angle.sin().to(device)

    def __call__(self, tokens: Tensor, attend) -> Tensor:
        """The logits of (n,) tokens. attend(layer, q, k, v) applies the rotary embedding itself."""
        x = self.embedding[tokens]
        for n, layer in enumerate(self.layers):
            projected = (rms_norm(x, (WIDTH,)) @ layer["qkv"].T).unflatten(-1, (-1, HEAD_DIM))
            q, k, v = projected.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
            x = x + attend(n, q, k, v).flatten(1) @ layer["out"].T
            up, gate = (rms_norm(x, (WIDTH,)) @ layer["up"].T).chunk(2, dim=-1)
            x = x + (up * silu(gate)) @ layer["down"].T
        return rms_norm(x, (WIDTH,)) @ self.embedding.T


@dataclass
class Request:
    prompt: list[int]
    max_new_tokens: int
    arrival_step: int
    output: list[int] = field(default_factory=list)
    cached: int = 0  # tokens in the cache
    pages: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def max_tokens(self) -> int:
        return len(self.prompt) + self.max_new_tokens


class Server:
    """Runs requests in a batch. A request starts when pages for all of its tokens are free."""

    def __init__(self, model: Model, device: str, cache: torch.dtype) -> None:
        self.model, self.device = model, device
        shape = (LAYERS, PAGES, PAGE, KV_HEADS, HEAD_DIM)
        self.k, self.v = (torch.zeros(shape, dtype=cache, device=device) for _ in "kv")
        self.free = list(range(PAGES))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.max_batch = 0

    def step(self) -> None:
        self._admit()
        self.max_batch = max(self.max_batch, len(self.running))
        # Decode tokens have priority; prompts share the rest of the step.
        budget, batch = TOKENS_PER_STEP, []
        for request in sorted(self.running, key=lambda r: len(r.tokens) - r.cached):
            count = min(budget, len(request.tokens) - request.cached)
            if count > 0:
                batch.append((request, count))
                budget -= count
        logits = self._forward(batch)
        for (request, count), last in zip(batch, logits):
            request.cached += count
            if request.cached == len(request.tokens):
                request.output.append(int(last.argmax()))
        for request in [r for r in self.running if len(r.output) == r.max_new_tokens]:
            self.running.remove(request)
            self.free += request.pages

    def _admit(self) -> None:
        while self.waiting:
            needed = -(-self.waiting[0].max_tokens // PAGE)
            if needed > len(self.free):
                return
            request = self.waiting.popleft()
            request.pages = [self.free.pop() for _ in range(needed)]
            self.running.append(request)

    def _forward(self, batch: list[tuple[Request, int]]) -> Tensor:
        """The logits after the last token of each request."""
        chunks = [r.tokens[r.cached : r.cached + count] for r, count in batch]
        tokens = torch.tensor([token for chunk in chunks for token in chunk], device=self.device)
        ends = torch.tensor([len(chunk) for chunk in chunks]).cumsum(0)
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), ends))
        table = torch.zeros(len(batch), max(len(r.pages) for r, _ in batch), dtype=torch.int32)
        for n, (request, _) in enumerate(batch):
            table[n, : len(request.pages)] = torch.tensor(request.pages)
        arguments = {
            "cu_seqlens_q": starts.int().to(self.device),
            "cu_seqlens_k_new": starts.int().to(self.device),
            "cache_seqlens": torch.tensor([r.cached for r, _ in batch]).int().to(self.device),
            "page_table": table.to(self.device),
            "max_seqlen_q": max(len(chunk) for chunk in chunks),
        }

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return rocflash.decode(
                q, self.k[layer], self.v[layer], k=k.to(self.k.dtype), v=v.to(self.v.dtype),
                rotary_cos=self.model.cos, rotary_sin=self.model.sin, rotary_interleaved=False,
                causal=True, want_lse=False, **arguments,
            )[0]  # fmt: skip

        return self.model(tokens, attend)[(ends - 1).to(self.device)]


def generate(model: Model, request: Request, device: str, cache: torch.dtype) -> list[int]:
    """The tokens of one request, each with naive attention over all previous tokens."""
    output: list[int] = []

    def rotate(x: Tensor) -> Tensor:
        cos, sin = model.cos[: len(x), None], model.sin[: len(x), None]
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = rotate(q)
        k, v = (
            x.to(q.dtype).repeat_interleave(HEADS // KV_HEADS, 1)
            for x in (rotate(k.to(cache)), v.to(cache))
        )
        scores = torch.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=device).triu(1)
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(mask, float("-inf")).softmax(-1), v)

    for _ in range(request.max_new_tokens):
        tokens = torch.tensor(request.prompt + output, device=device)
        output.append(int(model(tokens, attend)[-1].argmax()))
    return output


def requests(count: int, seed: int) -> list[Request]:
    generator = torch.Generator().manual_seed(seed + 1)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    return [
        Request(
            prompt=torch.randint(VOCABULARY, (number(1, 90),), generator=generator).tolist(),
            max_new_tokens=number(4, 24),
            arrival_step=number(0, 20),
        )
        for _ in range(count)
    ]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_device_option(parser)
    parser.add_argument("--cache", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = chosen_device(parser, options)
    if device.startswith("sim:"):
        parser.error(f"device is {device!r}; the simulator serves the self-tests only")
    cache = getattr(torch, options.cache)
    model = Model(options.seed, device)
    server = Server(model, device, cache)
    submitted = requests(options.requests, options.seed)
    pending = deque(sorted(submitted, key=lambda r: r.arrival_step))
    steps, start = 0, time.perf_counter()
    while pending or server.waiting or server.running:
        while pending and pending[0].arrival_step <= steps:
            server.waiting.append(pending.popleft())
        if server.waiting or server.running:
            server.step()
        steps += 1
    elapsed = time.perf_counter() - start
    total = sum(len(r.tokens) for r in submitted)
    wrong = [n for n, r in enumerate(submitted) if r.output != generate(model, r, device, cache)]
    print(
        f"{len(submitted)} requests, {total} tokens in {steps} steps and {elapsed:.2f} s on "
        f"{device}, "
        f"{options.cache} cache; up to {server.max_batch} in a batch"
    )
    if wrong:
        raise SystemExit(f"requests {wrong}: tokens differ from those of naive attention")
    print("tokens are those of naive attention")


if __name__ == "__main__":
    main()
