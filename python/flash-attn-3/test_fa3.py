"""A minimal check of the FlashAttention-3 interface on whatever device there is.

Run it: `python -m test_fa3 [device]`. It prints one line and exits with 1 if the answer is wrong.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F

from flash_attn_interface import flash_attn_func


def check(device: str) -> float:
    """The largest difference from torch's own attention, as a share of what bf16 may differ."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 128, 4, 64).to(device, torch.bfloat16) for _ in range(3))
    out, lse = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert out.shape == q.shape and lse.shape == (2, 4, 128)
    wide = (x.float().transpose(1, 2) for x in (q, k, v))
    expected = F.scaled_dot_product_attention(*wide, is_causal=True).transpose(1, 2)
    return (out.float() - expected).abs().max().item() / 2**-6


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    share = check(device)
    print(
        f"FA3 forward on {device}: {'ok' if share < 1 else 'WRONG'} ({share:.2f} of the tolerance)"
    )
    return int(share >= 1)


if __name__ == "__main__":
    sys.exit(main())
