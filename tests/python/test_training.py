"""A small transformer learns the same with this library's attention as with torch's, in bf16.

Most tokens of a sequence repeat the token at a fixed distance before them, which attention has to
learn. All runs start from one seed and use the same data. Rounding makes loss curves differ. The
test measures the difference between two implementations of torch, its kernel and naive attention,
in the same run. Our curve may differ from torch's by NOISE times that, or by 1 % of the first loss
if that is more.

With a GPU, STEPS_ON_GPU steps run on the GPU and on the CPU, and both curves are compared, too;
otherwise SHORT steps run on the CPU. `python tests/python/test_training.py --device cuda` prints
the curves.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Optional

import pytest
import torch
from torch import Tensor, nn

import rocflash

NOISE, STEPS_ON_GPU, SHORT = 3, 200, 40
VOCABULARY, LENGTH, BATCH, HEADS, SIZE, BACK = 32, 64, 8, 2, 32, 5

Attend = Callable[
    [Tensor, Tensor, Tensor, Tensor], Tensor
]  # q, k, v (b, s, h, d), bias (1, h, s, s)


def by_rocflash(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return rocflash.attention(q, k, v, bias=bias, causal=True)


def by_torch(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    bias = bias.masked_fill(hidden(bias.device), -math.inf)
    return nn.functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2)


def by_steps(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ (k / SIZE**0.5).transpose(-1, -2) + bias
    scores = scores.masked_fill(hidden(bias.device), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def hidden(device: torch.device) -> Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)


class Layer(nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        width = HEADS * SIZE
        self.attend = attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        # A logit for each distance, as T5 has it: learned through the gradient of the bias.
        self.distances = nn.Parameter(torch.zeros(HEADS, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        position = torch.arange(LENGTH, device=x.device)
        bias = self.distances[:, (position[:, None] - position).clamp(min=0)][None]
        q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, HEADS, SIZE).unbind(2)
        x = x + self.out(self.attend(q, k, v, bias).flatten(2))
        return x + self.mlp(self.norms[1](x))


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        x = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        repeats = torch.rand(BATCH, LENGTH + 1, generator=generator) < 0.9
        for n in range(BACK, LENGTH + 1):
            x[:, n] = torch.where(repeats[:, n], x[:, n - BACK], x[:, n])
        found.append(x)
    return found


def train(attend: Attend, device: str, steps: int) -> Tensor:
    """The loss of each step."""
    torch.manual_seed(0)
    width = HEADS * SIZE
    layers = [Layer(attend) for _ in range(2)]
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, width), *layers, nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
    )
    model = model.to(device, torch.bfloat16)
    # Weights in f32 would hide nothing of attention's own rounding, but bf16 ones hardly move.
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=5e-3)
    losses = []
    for x in batches(steps):
        x = x.to(device)
        logits = model(x[:, :-1]).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for master, p in zip(masters, model.parameters()):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters()):
                p.copy_(master)
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference of two curves, each smoothed over ten steps."""
    a, b = (x.unfold(0, 10, 1).mean(-1) for x in (a, b))
    return (a - b).abs().max().item()


def hold(ours: Tensor, theirs: Tensor, noise: float) -> None:
    allowed = NOISE * max(noise, theirs[0].item() / 100 / NOISE)
    found = apart(ours, theirs)
    assert found <= allowed, f"curves are {found:.4f} apart, {allowed:.4f} allowed"


def learns(device: str, steps: int) -> tuple[Tensor, Tensor, float]:
    """Curves of ours and of torch's, and the noise, on one device."""
    theirs = train(by_torch, device, steps)
    noise = apart(train(by_steps, device, steps), theirs)
    ours = train(by_rocflash, device, steps)
    hold(ours, theirs, noise)
    return ours, theirs, noise


@pytest.mark.skipif(torch.cuda.is_available(), reason="done on the GPU, and longer")
def test_training_on_the_cpu() -> None:
    ours, theirs, _ = learns("cpu", SHORT)
    for curve in (ours, theirs):
        assert curve[-5:].mean() < 0.9 * curve[0], "nothing was learned, so nothing is tested"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU here")
def test_training_on_a_gpu_and_on_the_cpu() -> None:
    ours, theirs, noise = learns("cuda", STEPS_ON_GPU)
    here, there, noise_here = learns("cpu", STEPS_ON_GPU)
    noise = max(noise, noise_here, apart(there, theirs))
    hold(ours, here, noise)
    for curve in (ours, theirs, here, there):
        assert curve[-10:].mean() < 0.5 * curve[0], "nothing was learned, so nothing is tested"


def main(arguments: Optional[list[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=STEPS_ON_GPU)
    given = parser.parse_args(arguments)
    ours, theirs, noise = learns(given.device, given.steps)
    for n in range(0, given.steps, max(1, given.steps // 20)):
        print(f"step {n:4}  rocflash {ours[n]:.4f}  torch {theirs[n]:.4f}")
    print(f"apart {apart(ours, theirs):.4f}, torch's two ways {noise:.4f}")


if __name__ == "__main__":
    main()
