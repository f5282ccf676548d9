"""The build guide's verification: every name, mask and option of flash_attention_amd against plain attention.

python examples/verify_amd.py [device]
"""

from __future__ import annotations

import sys

import torch

from flash_attention_amd import FlashAttention, FlashAttentionInterface, flash_attn_func


def standard(q, k, v, keep=None):
    """(out, probabilities) by the textbook, in f32."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * q.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
    weights = scores.softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.float()), weights


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 128, 8, 64, device=device) for _ in range(3))
    triangle = torch.ones(128, 128, dtype=torch.bool, device=device).tril()
    padding = torch.ones(2, 128, dtype=torch.bool, device=device)
    padding[1, 100:] = False
    per_query = torch.rand(2, 128, 128, device=device) > 0.2
    per_head = torch.rand(2, 8, 128, 128, device=device) > 0.2
    out, probabilities = flash_attn_func(q, k, v, return_attn_probs=True)
    rows = {
        "flash_attn_func": (out, standard(q, k, v)[0]),
        "probabilities": (probabilities, standard(q, k, v)[1]),
        "causal": (flash_attn_func(q, k, v, causal=True), standard(q, k, v, triangle)[0]),
        "FlashAttention": (FlashAttention()(q, k, v), standard(q, k, v)[0]),
        "mask (b, sk)": (
            FlashAttention()(q, k, v, mask=padding),
            standard(q, k, v, padding[:, None, None])[0],
        ),
        "mask (b, sq, sk)": (
            FlashAttention()(q, k, v, mask=per_query),
            standard(q, k, v, per_query[:, None])[0],
        ),
        "mask (b, h, sq, sk)": (
            FlashAttention(causal=True)(
                q, k, v, mask=per_head | torch.eye(128, device=device).bool()
            ),
            standard(q, k, v, (per_head | torch.eye(128, device=device).bool()) & triangle)[0],
        ),
        "FlashAttentionInterface": (
            FlashAttentionInterface.forward(None, q, k, v),
            standard(q, k, v)[0],
        ),
    }
    good = True
    for name, (found, expected) in rows.items():
        error = (found - expected).abs().max().item()
        good &= error < 1e-5
        print(f"{name:26} {'ok' if error < 1e-5 else 'WRONG'}  largest difference {error:.1e}")
    print("verified" if good else "NOT verified")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
