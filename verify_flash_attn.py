"""The build guide's verification: flash_attention_amd on a device, f32 unless told otherwise.

    python verify_flash_attn.py [device] [--seq-len 1024] [--dtype float32]

Runs the guide's call and prints its output's shape; then holds every name, mask and option of the module to attention in double
precision. An error may be twice that of plain attention in the same dtype, which is the rule of the project's tests.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

from flash_attention_amd import FlashAttention, FlashAttentionInterface, flash_attn_func
from rocflash.prove import chosen_device


def standard(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(out, probabilities) by the textbook, in the dtype of the inputs."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
    weights = scores.softmax(-1)
    return (weights @ v).transpose(1, 2), weights


def share(found: Tensor, which: int, inputs: list[Tensor], keep: Tensor | None = None) -> float:
    """The error as a share of what is allowed; result `which` of `standard` is what was to be found."""
    exact = standard(*(x.double() for x in inputs), keep)[which]
    plain = standard(*inputs, keep)[which]
    allowed = 2 * (plain.double() - exact).abs().max().item() + torch.finfo(found.dtype).eps
    return (found.double() - exact).abs().max().item() / allowed


def rows(inputs: list[Tensor]) -> dict[str, float]:
    """Each name and option of the module, with the share of the allowed error that it has."""
    q, k, v = inputs
    batch, length, heads, _ = q.shape
    device = q.device
    triangle = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    padding = torch.ones(batch, length, dtype=torch.bool, device=device)
    padding[-1, length - length // 4 :] = False
    # Each query keeps itself, so that none is left without a key.
    own = torch.eye(length, dtype=torch.bool, device=device)
    per_query = (torch.rand(batch, length, length, device=device) > 0.2) | own
    per_head = (torch.rand(batch, heads, length, length, device=device) > 0.2) | own
    out, probabilities = flash_attn_func(q, k, v, return_attn_probs=True)
    masked = FlashAttention()
    half = [q, k[:, : length // 2], v[:, : length // 2]]
    return {
        "flash_attn_func": share(out, 0, inputs),
        "probabilities": share(probabilities, 1, inputs),
        "causal": share(flash_attn_func(q, k, v, causal=True), 0, inputs, triangle),
        "causal, half the keys": share(
            flash_attn_func(*half, causal=True), 0, half, triangle[:, : length // 2]
        ),
        "FlashAttention": share(masked(q, k, v), 0, inputs),
        "mask (b, sk)": share(masked(q, k, v, mask=padding), 0, inputs, padding[:, None, None]),
        "mask (b, sq, sk)": share(masked(q, k, v, mask=per_query), 0, inputs, per_query[:, None]),
        "mask (b, h, sq, sk), causal": share(
            FlashAttention(causal=True)(q, k, v, mask=per_head), 0, inputs, per_head & triangle
        ),
        "FlashAttentionInterface": share(FlashAttentionInterface.forward(None, q, k, v), 0, inputs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "device", nargs="?", help="default: cuda (also ROCm's) where torch has it, else cpu"
    )
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--num-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    given = parser.parse_args()
    device = chosen_device(parser, given.device)
    torch.manual_seed(0)
    shape = (given.batch_size, given.seq_len, given.num_heads, given.head_dim)
    dtype = getattr(torch, given.dtype)
    inputs = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
    print(f"Device: {device}, {given.dtype}")
    print(f"Output shape: {flash_attn_func(*inputs, causal=True).shape}")
    found = rows(inputs)
    for name, part in found.items():
        print(f"  {name:28} {'ok' if part <= 1 else 'WRONG'}  {part:.2f} of the allowed error")
    good = all(part <= 1 for part in found.values())
    print("verified" if good else "NOT verified")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
