"""Attention over a KV cache in torch.compile: rocflash::decode and rocflash::decode_append; graphs
that are loaded.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flash_attn
import rocflash
from rocflash._c.options import AT, DEFAULTS

LENGTHS = torch.tensor([5, 17], dtype=torch.int32)
TABLE = torch.tensor([[3, 1, 7, 0], [2, 6, 5, 4]], dtype=torch.int32)
Q, NEW = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 2, 16)
COS, SIN = torch.randn(64, 4), torch.randn(64, 4)
Q1, QV = torch.randn(2, 1, 4, 16), torch.randn(2, 1, 4, 32)
NEW_K, NEW_V = torch.randn(2, 1, 1, 16), torch.randn(2, 1, 1, 32)
ROTARY = {"rotary_cos": COS, "rotary_sin": SIN}
DENSE, PAGED = [(3, 24, 2, 16)] * 2, [(8, 6, 2, 16)] * 2
LATENT = [(2, 24, 1, 16), (2, 24, 1, 32)]
CALLS: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
    "read": (DENSE, lambda k, v: rocflash.decode(Q * 1, k, v, cache_seqlens=LENGTHS, causal=True)),
    "int": (DENSE, lambda k, v: rocflash.decode(Q * 1, k, v, cache_seqlens=7, want_lse=False)),
    "append": (
        DENSE,
        lambda k, v: rocflash.decode(
            Q * 1, k, v, k=NEW, v=NEW * 2, cache_seqlens=LENGTHS, **ROTARY
        ),
    ),
    "paged": (
        PAGED,
        lambda k, v: rocflash.decode(
            Q * 1, k, v, k=NEW, v=NEW, cache_seqlens=LENGTHS, page_table=TABLE
        ),
    ),
    "mla": (LATENT, lambda k, v: rocflash.decode(Q1 * 1, k, v, qv=QV, cache_seqlens=LENGTHS)),
    "mla append": (
        LATENT,
        lambda k, v: rocflash.decode(Q1 * 1, k, v, k=NEW_K, v=NEW_V, qv=QV, cache_seqlens=LENGTHS),
    ),
    "flash_attn": (
        DENSE,
        lambda k, v: flash_attn.flash_attn_with_kvcache(
            Q * 1, k, v, NEW, NEW, cache_seqlens=LENGTHS
        ),
    ),
    "out": (
        DENSE,
        lambda k, v: rocflash.decode(Q * 1, k, v, cache_seqlens=LENGTHS, out=torch.empty_like(Q)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_compiles_in_one_graph(name: str) -> None:
    """With the same result, and the same caches afterwards."""
    shapes, function = CALLS[name]
    caches = [torch.randn(shape) for shape in shapes]
    eager, compiled = ([x.clone() for x in caches] for _ in range(2))
    wanted = function(*eager)
    torch._dynamo.reset()
    found = torch.compile(function, fullgraph=True, backend="aot_eager")(*compiled)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(compiled, eager)


def test_a_compiled_graph_follows_use_backend() -> None:
    cache = torch.randn(2, 8, 2, 16)
    compiled = torch.compile(
        lambda q: rocflash.decode(q * 1, cache, cache), fullgraph=True, backend="aot_eager"
    )
    for name in ("cpu", "reference"):
        with rocflash.use_backend(name):
            torch.testing.assert_close(
                compiled(Q), rocflash.decode(Q, cache, cache), rtol=0, atol=0
            )


def arguments(append: tuple[Any, ...]) -> tuple[Any, ...]:
    options = list(DEFAULTS)
    options[AT["seqused_k"]] = LENGTHS
    caches = torch.randn(2, 24, 2, 16), torch.randn(2, 24, 2, 16)
    return (Q, *caches, None, *options, *append, True, "page_table")


@pytest.mark.skipif(
    not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck is not available"
)
def test_schemas_and_fakes() -> None:
    torch.library.opcheck(torch.ops.rocflash.decode.default, arguments((None,) * 6))
    torch.library.opcheck(
        torch.ops.rocflash.decode_append.default, arguments((NEW, NEW, None, COS, SIN, None))
    )


def test_errors_have_the_callers_names() -> None:
    cache = torch.randn(2, 8, 2, 16)
    compiled = torch.compile(
        lambda q: rocflash.decode(q * 1, cache, cache, cache_seqlens=9), backend="aot_eager"
    )
    with pytest.raises(
        rocflash.InvalidArgument,
        match="^cache_seqlens is 9 for sequence 0; it must be 0 to its length, 8",
    ):
        compiled(Q)
    with pytest.raises(rocflash.InvalidArgument, match=r"^out is torch.float32 of shape \(1,\)"):
        torch.compile(
            lambda q: rocflash.decode(q, cache, cache, out=torch.empty(1)), backend="eager"
        )(Q)


def test_meta_tensors_have_shapes() -> None:
    x = torch.empty(2, 3, 4, 16, device="meta")
    out, lse = rocflash.decode(x, x, x)
    assert out.shape == x.shape and lse.shape == (2, 4, 3)


@pytest.mark.parametrize("number", [99, 5, 66, -7])
def test_an_unknown_backend_number_is_rejected(number: int) -> None:
    with pytest.raises(
        ValueError, match=f"^backend is {number}; it must be 0 \\(auto\\), 1 \\(cpu\\)"
    ):
        torch.ops.rocflash.forward(Q, NEW, NEW, *DEFAULTS[:-1], number, False)


class _Model(torch.nn.Module):
    def forward(self, q: Tensor, cache: Tensor) -> Any:
        return rocflash.attention(q, cache, cache), rocflash.decode(q, cache, cache)[0]


LOADS = """
import sys, torch, rocflash
q = torch.ones(2, 3, 4, 16)
cache = torch.ones(2, 8, 2, 16)
out, decoded = torch.export.load(sys.argv[1]).module()(q, cache)
assert torch.equal(out, q) and torch.equal(decoded, q)
assert "flash_attn" not in sys.modules
print("ok")
"""


def test_an_exported_graph_needs_only_import_rocflash(tmp_path: Path) -> None:
    path = str(tmp_path / "graph.pt2")
    torch.export.save(torch.export.export(_Model(), (Q, torch.randn(2, 8, 2, 16))), path)
    for program in (
        LOADS,
        LOADS.replace("torch, rocflash", "rocflash, torch; rocflash.load_operators()"),
    ):
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
        assert done.stdout == "ok\n", done.stderr
