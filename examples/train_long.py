"""Trains a small Llama-style model with context parallelism, on sequences longer than one process
may hold.

    # 4096 rows, at most 2048 per process; rejected in one process
    torchrun --nproc-per-node 2 examples/train_long.py
    # the same losses as in one process
    torchrun --nproc-per-node 2 examples/train_long.py --length 512 --compare
    # one process is killed and restarted
    torchrun --nproc-per-node 2 --max-restarts 1 examples/train_long.py --checkpoint run.pt \\
        --kill-at 12

The second half of each sequence repeats the first, so predictions depend on tokens half a sequence
back. Every process has all parameters and 1/N of the rows; gradients are summed. With --checkpoint
the state is saved every few steps, and a restarted run resumes from it. With --kill-at one process
kills itself at that step (once), and torchrun restarts all.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import rocflash
import rocflash.distributed as rfd


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotary: Tensor, split: bool) -> Tensor:
        parts = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = self.qkv(x).view(*x.shape[:2], -1, self.size).split(parts, dim=2)
        q, k = apply_rotary(q, rotary), apply_rotary(k, rotary)
        attend = rfd.attention if split else rocflash.attention
        return self.out(attend(q, k, v, causal=True).flatten(2))


def apply_rotary(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotary embedding; `rotary` has one complex factor per row and pair of columns."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotary[None, :, None]).flatten(-2).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, rotary: Tensor, split: bool) -> Tensor:
        x = x + self.attention(self.first(x), rotary, split)
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(
        self, words: int, width: int, heads: int, kv_heads: int, layers: int, most_rows: int
    ) -> None:
        super().__init__()
        self.most_rows = most_rows
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.frequencies = 1e4 ** (-torch.arange(0, width // heads, 2) / (width // heads))

    def forward(self, tokens: Tensor, positions: Tensor, split: bool) -> Tensor:
        if tokens.shape[1] > self.most_rows:
            raise SystemExit(
                f"train_long.py: --length {tokens.shape[1]}: a process may hold {self.most_rows} "
                "rows (--most-rows). "
                "Start more processes: torchrun --nproc-per-node N"
            )
        angles = positions.float()[:, None] * self.frequencies
        rotary = torch.polar(torch.ones_like(angles), angles)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rotary, split)
        return self.head(self.norm(x))


def batch_of(step: int, batch: int, length: int, words: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets, a function of the step."""
    draw = torch.Generator().manual_seed(step)
    half = torch.randint(0, words, (batch, length // 2 + 1), generator=draw)
    whole = torch.cat([half, half], dim=1)[:, : length + 1]
    return whole[:, :-1], whole[:, 1:]


def step_of(model: Model, tokens: Tensor, targets: Tensor, split: bool) -> float:
    """Computes the gradients of the whole batch and returns its loss."""
    length, count = tokens.shape[1], targets.numel()
    if split:
        tokens, targets = (rfd.shard_sequence(x, None) for x in (tokens, targets))
        positions = rfd.positions(length)
    else:
        positions = torch.arange(length)
    logits = model(tokens, positions, split)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / count
    model.zero_grad()
    loss.backward()
    total = loss.detach()
    if split:
        flat = torch.cat([total.view(1), *(p.grad.view(-1) for p in model.parameters())])
        dist.all_reduce(flat)
        total, *grads = flat.split([1, *(p.numel() for p in model.parameters())])
        for p, grad in zip(model.parameters(), grads):
            p.grad = grad.view_as(p)
    return float(total)


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes atomically: a process killed while it writes leaves the previous state intact."""
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def train(options: argparse.Namespace, split: bool) -> list[float]:
    torch.manual_seed(0)
    model = Model(
        options.words,
        options.width,
        options.heads,
        options.kv_heads,
        options.layers,
        options.most_rows,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rank = dist.get_rank() if split else 0
    losses: list[float] = []
    path = Path(options.checkpoint) if options.checkpoint and split else None
    if path is not None and path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
        if rank == 0:
            print(f"resumes after step {len(losses) - 1}", flush=True)
    while len(losses) < options.steps:
        step = len(losses)
        if path is not None and step == options.kill_at and rank == dist.get_world_size() - 1:
            marker = Path(f"{path}.killed")
            if not marker.exists():  # once
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        losses.append(
            step_of(model, *batch_of(step, options.batch, options.length, options.words), split)
        )
        optimizer.step()
        if rank == 0:
            print(
                f"{'split' if split else 'whole'} step {step:3}  loss {losses[-1]:.6f}", flush=True
            )
        if path is not None and rank == 0 and len(losses) % options.save_every == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "losses": losses,
            }
            save(path, state)
    return losses


def join() -> None:
    """Each restart has its own prefix in torchrun's store, where the keys of ended processes
    remain.
    """
    store, rank, size = next(dist.rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"start {start}", store), rank=rank, world_size=size
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=4096, help="rows of a sequence")
    parser.add_argument("--most-rows", type=int, default=2048, help="rows that a process may hold")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--words", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--checkpoint", help="file of the state; training resumes from it")
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument(
        "--kill-at", type=int, default=-1, help="the last process kills itself at this step, once"
    )
    parser.add_argument(
        "--compare", action="store_true", help="train in one process too and compare the losses"
    )
    options = parser.parse_args()
    split = "RANK" in os.environ  # torchrun's
    if split:
        join()
    losses = train(options, split)
    if options.compare and split and dist.get_rank() == 0:
        apart = max(abs(a - b) for a, b in zip(losses, train(options, False)))
        print(f"largest difference of a loss to the run in one process: {apart:.2e}")
        if apart > 1e-3 * losses[0]:
            raise SystemExit("train_long.py: the losses differ")
    if split:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
