"""The build guide's verification: flash_attention_amd on a device, in f32 by default.

    python verify_flash_attn.py [--device auto] [--seq-len 1024] [--dtype float32]

Runs the guide's call and prints the output's shape. Then compares every function, mask and option
of the module with naive attention in double precision. An error may be at most twice that of naive
attention in the same dtype, the error bound of the project's tests.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

from flash_attention_amd import FlashAttention, FlashAttentionInterface, flash_attn_func
from rocflash.self_test import add_device_option, as_command, chosen_device, running_on


def naive(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Naive attention in the dtype of the inputs: (out, probabilities)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
    weights = scores.softmax(-1)
    return (weights @ v).transpose(1, 2), weights


def relative_error(
    result: Tensor, which: int, inputs: list[Tensor], keep: Tensor | None = None
) -> float:
    """The error divided by the allowed error; `which` selects the corresponding result of
    `naive`.
    """
    exact = naive(*(x.double() for x in inputs), keep)[which]
    baseline = naive(*inputs, keep)[which]
    allowed = 2 * (baseline.double() - exact).abs().max().item() + torch.finfo(result.dtype).eps
    return (result.double() - exact).abs().max().item() / allowed


def check(inputs: list[Tensor]) -> dict[str, float]:
    """Each function and option of the module, with its error divided by the allowed error."""
    q, k, v = inputs
    batch, length, heads, _ = q.shape
    device = q.device
    triangle = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    padding = torch.ones(batch, length, dtype=torch.bool, device=device)
    padding[-1, length - length // 4 :] = False
    # Each query attends to itself, so that no row is fully masked.
    diagonal = torch.eye(length, dtype=torch.bool, device=device)
    per_query = (torch.rand(batch, length, length, device=device) > 0.2) | diagonal
    per_head = (torch.rand(batch, heads, length, length, device=device) > 0.2) | diagonal
    out, probabilities = flash_attn_func(q, k, v, return_attn_probs=True)
    masked = FlashAttention()
    half = [q, k[:, : length // 2], v[:, : length // 2]]
    return {
        "flash_attn_func": relative_error(out, 0, inputs),
        "probabilities": relative_error(probabilities, 1, inputs),
        "causal": relative_error(flash_attn_func(q, k, v, causal=True), 0, inputs, triangle),
        "causal, half the keys": relative_error(
            flash_attn_func(*half, causal=True), 0, half, triangle[:, : length // 2]
        ),
        "FlashAttention": relative_error(masked(q, k, v), 0, inputs),
        "mask (b, sk)": relative_error(
            masked(q, k, v, mask=padding), 0, inputs, padding[:, None, None]
        ),
        "mask (b, sq, sk)": relative_error(
            masked(q, k, v, mask=per_query), 0, inputs, per_query[:, None]
        ),
        "mask (b, h, sq, sk), causal": relative_error(
            FlashAttention(causal=True)(q, k, v, mask=per_head), 0, inputs, per_head & triangle
        ),
        "FlashAttentionInterface": relative_error(
            FlashAttentionInterface.forward(None, q, k, v), 0, inputs
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_device_option(parser)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--num-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    options = parser.parse_args()
    device = chosen_device(parser, options)
    torch.manual_seed(0)
    shape = (options.batch_size, options.seq_len, options.num_heads, options.head_dim)
    dtype = getattr(torch, options.dtype)
    print(f"Device: {device}, {options.dtype}")
    with running_on(device) as torch_device:
        inputs = [torch.randn(shape, device=torch_device, dtype=dtype) for _ in range(3)]
        print(f"Output shape: {flash_attn_func(*inputs, causal=True).shape}")
        errors = check(inputs)
    for name, error in errors.items():
        print(f"  {name:28} {'ok' if error <= 1 else 'WRONG'}  {error:.2f} of the allowed error")
    passed = all(error <= 1 for error in errors.values())
    print("verified" if passed else "NOT verified")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(as_command(main))
