"""The build guide's benchmark: against standard attention, b 2, h 8, d 64, causal, 128 to 4096 tokens.

    python examples/benchmark_amd.py [device] [longest]

Prints speed-up, memory reduction and the largest difference. Memory is what a forward pass allocates beyond
its inputs; on the CPU the scores that standard attention must keep are counted, not measured.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import torch

from flash_attention_amd import flash_attn_func

BATCH, HEADS, SIZE = 2, 8, 64


def standard(q, k, v):
    """Materialises scores and weights, as a model without flash attention does."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * SIZE**-0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def seconds(call, device: str) -> float:
    """The best of several runs, half a second in all."""
    best, spent = float("inf"), 0.0
    call()
    while spent < 0.5:
        begin = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        took = time.perf_counter() - begin
        best, spent = min(best, took), spent + took
    return best


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    longest = int(sys.argv[2]) if len(sys.argv) > 2 else 4096
    print(
        f"b {BATCH}, h {HEADS}, d {SIZE}, causal, f32 on {device}, {torch.get_num_threads()} threads"
    )
    print(
        f"{'seq':>6}{'standard ms':>13}{'flash ms':>10}{'speed-up':>10}{'memory':>9}{'difference':>12}"
    )
    length = 128
    while length <= longest:
        torch.manual_seed(0)
        shape = (BATCH, length, HEADS, SIZE)
        q, k, v = (torch.randn(shape, device=device) for _ in range(3))
        with torch.no_grad():
            slow = seconds(partial(standard, q, k, v), device)
            fast = seconds(partial(flash_attn_func, q, k, v, causal=True), device)
            gap = (standard(q, k, v) - flash_attn_func(q, k, v, causal=True)).abs().max().item()
        # Scores, masked scores and weights; against the row statistics.
        kept, lean = 3 * BATCH * HEADS * length * length, BATCH * HEADS * length
        out = q.numel()
        ratio = (kept + out) / (lean + out)
        print(
            f"{length:6}{slow * 1e3:13.2f}{fast * 1e3:10.2f}{slow / fast:9.1f}x{ratio:8.1f}x{gap:12.1e}"
        )
        length *= 2


if __name__ == "__main__":
    main()
