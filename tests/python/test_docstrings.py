"""help(): every argument of every public function is described."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import flash_attention_amd
import rocflash
from flash_attn import flash_attn_interface as fa2
from flash_attn_3 import flash_attn_interface as fa3

FUNCTIONS = [
    *(
        getattr(fa2, n)
        for n in dir(fa2)
        if re.fullmatch(r"flash_attn_(\w+_)?func|flash_attn_with_kvcache", n)
    ),
    *(
        getattr(fa3, n)
        for n in dir(fa3)
        if re.fullmatch(r"flash_attn_(\w+_)?func|flash_attn_with_kvcache", n)
    ),
    fa3.flash_attn_combine,
    fa3.get_scheduler_metadata,
    flash_attention_amd.flash_attn_func,
    rocflash.attention,
    rocflash.decode,
    rocflash.explain,
    rocflash.sdpa.scaled_dot_product_attention,
    rocflash.set_backend,
]


def test_all_functions_are_here() -> None:
    assert len(FUNCTIONS) == 7 + 4 + 8


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_every_argument_is_described(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    groups = re.findall(r"^([a-z_0-9]+(?:, [a-z_0-9]+)*): ", text, re.MULTILINE)
    described = {name for group in groups for name in group.split(", ")}
    missing = [name for name in inspect.signature(function).parameters if name not in described]
    assert not missing, f"{missing}; described: {sorted(described)}"
    assert re.search(r"returns|^\(out", text, re.I | re.M) or function is rocflash.set_backend
