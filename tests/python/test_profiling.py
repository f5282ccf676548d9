"""Attention in torch.profiler, and its NVTX or ROCTX ranges."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import rocflash
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from rocflash._torch import profiling

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def recorded(call: Callable[[], Any]) -> Counter:
    """How often each operator of rocflash's appears."""
    call()
    activities = [
        ProfilerActivity.CPU,
        *([ProfilerActivity.CUDA] if torch.cuda.is_available() else []),
    ]
    with profile(activities=activities) as found:
        call()
    return Counter({e.key: e.count for e in found.key_averages() if e.key.startswith("rocflash::")})


@pytest.mark.parametrize("device", DEVICES)
def test_operators_have_stable_names(device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(2, 9, 4, 64, device=device).to(dtype) for _ in "qkv")
    used = torch.tensor([5, 9], device=device).int()
    cu = torch.tensor([0, 9, 18], device=device).int()
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    for call in (
        lambda: rocflash.attention(q, k, v, causal=True),
        lambda: rocflash.attention(q, k, v, return_lse=True),
        lambda: flash_attn_func(q, k, v),
        lambda: flash_attn_varlen_func(*packed, cu, cu, 9, 9),
    ):
        assert recorded(call) == {"rocflash::forward": 1}
    decode = recorded(lambda: flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=used))
    assert decode == {"rocflash::decode": 1}
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    for attend in (rocflash.attention, flash_attn_func):
        training = recorded(lambda f=attend: f(*leaves).sum().backward())
        assert training == {"rocflash::forward": 1, "rocflash::backward": 1}


def test_operators_of_graphs_are_not_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(2, 9, 4, 64) for _ in "qkv")
    arguments = (*tuple(rocflash._c.options.Options()), False)

    def call() -> Any:
        return torch.ops.rocflash.forward(q, k, v, *arguments)

    found = recorded(call)
    monkeypatch.setattr(profiling, "enabled", lambda: False)
    assert found == recorded(call) and found["rocflash::forward"] > 0  # torch's dispatcher alone


def test_ranges_of_external_profilers(monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", marks.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: marks.append("end"))
    q, k, v = (torch.randn(2, 9, 4, 64).requires_grad_() for _ in "qkv")
    rocflash.attention(q, k, v).sum().backward()
    assert not marks
    monkeypatch.setattr(profiling, "ranges", True)
    rocflash.attention(q, k, v).sum().backward()
    assert marks == ["rocflash::forward", "end", "rocflash::backward", "end"]


def test_ranges_are_chosen_by_the_environment() -> None:
    program = "from rocflash._torch import profiling; print(profiling.ranges)"

    def chosen(**variables: str) -> str:
        clean = {k: v for k, v in os.environ.items() if k not in profiling._TOOLS}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**clean, **variables},
            capture_output=True,
            text=True,
        )
        return done.stdout.strip() or done.stderr.splitlines()[-1]

    assert chosen() == "False"
    assert chosen(NVTX_INJECTION64_PATH="/x") == "True"
    assert chosen(NVTX_INJECTION64_PATH="/x", ROCFLASH_PROFILER_RANGES="0") == "False"
    assert "ROCFLASH_PROFILER_RANGES is 'yes'; it must be 0 or 1" in chosen(
        ROCFLASH_PROFILER_RANGES="yes"
    )
