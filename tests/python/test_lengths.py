"""Lengths, offsets and windows of integrations: int64 values do not wrap around, a window of 0 is
no window.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rocflash
from flash_attn.layers.rotary import apply_rotary_emb
from rocflash._torch.options import as_int32
from rocflash.integrations import transformers as bridge

MODULE = torch.nn.Module()
X = torch.randn(1, 2, 6, 16)


def packed(**given: Any) -> Any:
    starts = torch.tensor([0, 2, 6])
    lengths = {
        "cu_seq_lens_q": starts,
        "cu_seq_lens_k": starts,
        "max_length_q": 4,
        "max_length_k": 4,
        **given,
    }
    return bridge.attention_forward(MODULE, X, X, X, None, **lengths)[0]


@pytest.mark.parametrize("name", ["cu_seq_lens_q", "cu_seq_lens_k"])
@pytest.mark.parametrize("value", [2**32 + 2, 2**31, -(2**32) + 2])
def test_lengths_of_int64_do_not_wrap(name: str, value: int) -> None:
    torch.testing.assert_close(
        packed(), packed(**{name: torch.tensor([0, 2, 6], dtype=torch.int32)})
    )
    with pytest.raises(
        ValueError, match=f"^{name} is {value}; its values must be 0 to 2\\*\\*31 - 1"
    ):
        packed(**{name: torch.tensor([0, value, 6])})
    with pytest.raises(
        ValueError, match=f"^{name} has dtype torch.float32; it must be int32 or int64"
    ):
        packed(**{name: torch.tensor([0.0, 2.0, 6.0])})


def test_lengths_are_clamped_if_reading_would_synchronize() -> None:
    clamped = torch.compile(lambda x: as_int32("x", x), fullgraph=True, backend="eager")(
        torch.tensor([2**32 + 2, 7])
    )
    assert clamped.tolist() == [2**31 - 1, 7]
    assert as_int32("x", torch.empty(3, dtype=torch.int64, device="meta")).dtype is torch.int32


def test_rotary_offsets_do_not_wrap() -> None:
    x, cos = torch.randn(1, 3, 2, 16), torch.randn(8, 4)
    with pytest.raises(ValueError, match=f"^seqlen_offsets is {2**32}; "):
        apply_rotary_emb(x, cos, cos, seqlen_offsets=torch.tensor([2**32]))


@pytest.mark.parametrize("window", [0, -1, 2.5, True])
def test_a_sliding_window_below_1_is_rejected(window: Any) -> None:
    with pytest.raises(
        rocflash.InvalidArgument, match=f"^sliding_window is {window!r}; it must be None"
    ):
        packed(sliding_window=window)
    with pytest.raises(
        rocflash.InvalidArgument, match=f"^sliding_window is {window!r}; it must be None"
    ):
        bridge.attention_forward(MODULE, X, X, X, None, sliding_window=window)


def test_a_sliding_window_of_1_is_only_the_query() -> None:
    torch.testing.assert_close(packed(sliding_window=1), X.transpose(1, 2))
    # Without a mask too, although transformers then has a window that holds all keys.
    found = bridge.attention_forward(MODULE, X, X, X, None, sliding_window=1)[0]
    torch.testing.assert_close(found, X.transpose(1, 2))
    found = bridge.attention_forward(
        MODULE, X[:, :, :1], X, X, None, sliding_window=2, is_causal=False
    )[0]
    wanted = rocflash.attention(
        X[:, :, :1].transpose(1, 2), X[:, :, 4:].transpose(1, 2), X[:, :, 4:].transpose(1, 2)
    )
    torch.testing.assert_close(found, wanted)
