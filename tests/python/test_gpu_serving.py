"""Serving on a GPU: MLA, mixed dtypes, invalid tables, arrays, transformers.

Needs a GPU that torch can use (CUDA or ROCm); skipped without one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_gpu import agree, worst

import flash_attn_3.flash_attn_interface as fa3
import rocflash

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU here")


class Speaks:
    """An array of no library that rocflash knows: DLPack, and a namespace that makes results."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __dlpack__(self, **kind: object) -> object:
        return self.x.__dlpack__(**kind)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()

    def __array_namespace__(self) -> object:
        return torch


def latent(heads: int, queries: int = 1, keys: int = 300, dtype: torch.dtype = torch.bfloat16):
    q, rows = torch.randn(2, queries, heads, 576), torch.randn(2, keys, 1, 576)
    return q.to(dtype), rows.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("heads", [16, 40, 128])
def test_mla_decode(heads: int, dtype: torch.dtype) -> None:
    q, rows = latent(heads, 2, dtype=dtype)
    there = rows.cuda()
    out, _ = rocflash.decode(q.cuda(), there, there[..., :512], causal=True)
    agree(out, q, rows, rows[..., :512], causal=True)


def test_mla_with_paged_kv_and_append() -> None:
    q, rows = latent(24)
    new = torch.randn(2, 1, 1, 576).bfloat16()
    pages = torch.zeros(12, 64, 1, 576, dtype=torch.bfloat16, device="cuda")
    table = torch.randperm(12).view(2, 6).int()
    for n in range(2):
        for page in range(5):
            piece = rows[n, 64 * page : 64 * (page + 1)].cuda()
            pages[table[n, page], : len(piece)] = piece
    given = new.cuda()
    out, _ = rocflash.decode(
        q.cuda(), pages, pages[..., :512], k=given, v=given[..., :512], page_table=table.cuda(),
        cache_seqlens=torch.tensor([300, 300]).int().cuda(),
    )  # fmt: skip
    rows = torch.cat((rows, new), 1)
    agree(out, q, rows, rows[..., :512])


@pytest.mark.parametrize("heads, size", [(16, 8), (32, 64), (64, 24), (128, 64)])
def test_mla_in_a_graph_with_other_lengths(heads: int, size: int) -> None:
    """Captured once; lengths and tables change, rows after the keys in use are NaN."""
    q, rows = latent(heads, keys=1536)
    there, pages = q.cuda(), torch.full((3 * 1536 // size, size, 1, 576), float("nan"))
    table = torch.randperm(len(pages)).view(3, -1)[:2].int()
    pages[table.long().flatten()] = rows.float().view(-1, size, 1, 576)
    cache, named = pages.bfloat16().cuda(), table.cuda()
    used = torch.tensor([1536, 1536], dtype=torch.int32, device="cuda")
    arguments = {"page_table": named, "cache_seqlens": used}
    rocflash.decode(there, cache, cache[..., :512], **arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = rocflash.decode(there, cache, cache[..., :512], **arguments)
    for lengths in ([1536, 1536], [1, 700], [64, 0], [1000, 129]):
        used.copy_(torch.tensor(lengths))
        clean = cache.clone()
        for n, length in enumerate(lengths):  # in pages that are in use in part
            if length % size:
                cache[named[n, length // size], length % size :] = float("nan")
        graph.replay()
        for n, length in enumerate(lengths):
            recorded = rows[n : n + 1, :length]
            if length:
                agree(out[n : n + 1], q[n : n + 1], recorded, recorded[..., :512])
            else:
                assert not out[n].any()
        cache.copy_(clean)


def test_qv_with_one_buffer() -> None:
    """As servers of DeepSeek's models call FA3: 64 columns of keys after 512 of values."""
    q, rows = latent(16)
    there, whole = rows.cuda(), q.cuda()
    arguments = {"cache_seqlens": torch.tensor([300, 177]).int().cuda(), "softmax_scale": 192**-0.5}
    out = fa3.flash_attn_with_kvcache(
        whole[..., 512:].contiguous(), there[..., 512:], there[..., :512],
        qv=whole[..., :512].contiguous(), **arguments,
    )  # fmt: skip
    expected, _ = rocflash.decode(whole, there, there[..., :512], **arguments)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("cache", [torch.float16, torch.bfloat16])
def test_half_caches_with_float_queries(cache: torch.dtype) -> None:
    q, k, v = torch.randn(2, 3, 8, 64), *(torch.randn(2, 500, 2, 64).to(cache) for _ in "kv")
    k_new, v_new = (torch.randn(2, 3, 2, 64).to(cache) for _ in "kv")
    used = torch.tensor([400, 17]).int()
    on_cpu = [x.clone() for x in (k, v)]
    exact, _ = rocflash.decode(q, *on_cpu, k=k_new, v=v_new, cache_seqlens=used, causal=True)
    there = [x.cuda() for x in (k, v)]
    found, _ = rocflash.decode(
        q.cuda(), *there, k=k_new.cuda(), v=v_new.cuda(), cache_seqlens=used.cuda(), causal=True
    )
    assert found.dtype == torch.float32 and worst(found, exact) < 1e-5
    assert all(torch.equal(a.cpu(), b) for a, b in zip(there, on_cpu))


HOSTILE = [-1, -(2**31), 2**31 - 1, 12, 1 << 20]


@pytest.mark.parametrize("d, dv, hk", [(128, 128, 2), (576, 512, 1), (64, 64, 4)])
def test_invalid_tables_and_lengths(d: int, dv: int, hk: int) -> None:
    """Invalid pages and lengths affect only their own sequences."""
    pages, size, heads = 12, 16, 4 * hk
    guard = torch.full((3, pages, size, hk, d), float("nan"), dtype=torch.float16, device="cuda")
    guard[1] = torch.randn(pages, size, hk, d).half()
    keys = guard[1]
    values = keys[..., :dv] if dv < d else keys.clone()
    q = torch.randn(4, 1, heads, d, dtype=torch.float16, device="cuda")
    table = torch.randperm(12, device="cuda").view(4, 3).int()
    used = torch.tensor([48, 33, 5, 20], dtype=torch.int32, device="cuda")
    good, _ = rocflash.decode(q, keys, values, page_table=table, cache_seqlens=used)
    kept = guard.clone()
    for wrong in HOSTILE:
        bad_table, bad_used = table.clone(), used.clone()
        bad_table[1] = wrong
        bad_used[2] = wrong
        out, _ = rocflash.decode(q, keys, values, page_table=bad_table, cache_seqlens=bad_used)
        assert torch.equal(out[0], good[0]) and torch.equal(out[3], good[3]), wrong
        assert not out.isnan().any(), wrong  # nothing outside was read
        new = torch.randn(4, 1, hk, d, dtype=torch.float16, device="cuda")
        rocflash.decode(
            q, keys, values, k=new, v=new[..., :dv], page_table=bad_table, cache_seqlens=bad_used
        )
        assert guard[0].isnan().all() and guard[2].isnan().all(), wrong  # nor written
        keys.copy_(kept[1])
        if dv == d:
            values.copy_(kept[1])
    torch.cuda.synchronize()


@pytest.mark.parametrize("d, dv, hk", [(128, 128, 2), (576, 512, 1), (256, 256, 1)])
@pytest.mark.parametrize("size", [0, 16])
def test_unused_rows_of_the_cache_have_no_influence(d: int, dv: int, hk: int, size: int) -> None:
    q = torch.randn(3, 2, 4 * hk, d, dtype=torch.bfloat16, device="cuda")
    keys = torch.randn(3, 640, hk, d, dtype=torch.bfloat16, device="cuda")
    used = torch.tensor([0, 333, 640], dtype=torch.int32, device="cuda")
    arguments: dict = {"cache_seqlens": used, "causal": True}
    if size:
        arguments["page_table"] = torch.arange(3 * 640 // size, device="cuda").view(3, -1).int()

    def computed(keys: torch.Tensor) -> torch.Tensor:
        values = keys[..., :dv] if dv < d else keys.flip(-1)
        if size:
            keys, values = (x.reshape(-1, size, hk, x.shape[-1]) for x in (keys, values))
            values = keys[..., :dv] if dv < d else values
        return rocflash.decode(q, keys, values, **arguments)[0]

    clean = computed(keys)
    for odd in (float("nan"), float("inf")):
        dirty = keys.clone()
        for n, length in enumerate(used.tolist()):
            dirty[n, length:] = odd
        assert torch.equal(computed(dirty), clean)
    assert not clean[0].any()


def test_decode_of_arrays() -> None:
    """Arrays with DLPack on the GPU."""
    q, k = torch.randn(2, 1, 8, 64).half().cuda(), torch.randn(2, 700, 2, 64).half().cuda()
    used = torch.tensor([700, 31]).int().cuda()
    expected, _ = rocflash.decode(q, k, k, cache_seqlens=used)
    out = torch.empty_like(q)
    torch.cuda.synchronize()  # arrays run on the default stream
    arrays = [Speaks(x) for x in (q, k, k)]
    arguments = {"cache_seqlens": Speaks(used), "out": Speaks(out), "want_lse": False}
    rocflash.decode(*arrays, **arguments)
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("cache", ["float32", "float16"])
def test_the_serving_example(cache: str) -> None:
    script = Path(__file__).parents[2] / "examples" / "serve.py"
    done = subprocess.run(
        [sys.executable, str(script), "cuda", "--cache", cache], capture_output=True, text=True
    )
    assert done.returncode == 0 and "tokens are those" in done.stdout, done.stdout + done.stderr


def test_generate_with_static_caches_and_graphs() -> None:
    """transformers compiles the decoding step, and torch captures it in a graph; prefill runs as it
    is.
    """
    transformers = pytest.importorskip("transformers")
    from test_transformers import bridge, models
    from torch._dynamo.utils import counters

    eager, ours = (m.cuda().eval() for m in models("llama", bridge.NAME))
    tokens = torch.randint(3, 97, (2, 9)).cuda()
    arguments = {"max_new_tokens": 12, "do_sample": False}
    expected = eager.generate(tokens, **arguments)
    assert torch.equal(ours.generate(tokens, **arguments), expected)
    static = {"cache_implementation": "static", **arguments}
    assert torch.equal(ours.generate(tokens, disable_compile=True, **static), expected)
    # Without kernel compilation, which would take most of a minute: the test is about graphs.
    graphs = transformers.CompileConfig(backend="cudagraphs", mode=None, dynamic=False)
    torch._dynamo.reset()  # other tests have compiled, too
    counters.clear()
    for _ in range(2):  # captured, and replayed
        found = ours.generate(tokens, compile_config=graphs, **static)
        assert torch.equal(found, expected)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


def test_generate_with_flash_attention_2() -> None:
    pytest.importorskip("transformers")
    from test_transformers import models

    eager, ours = (m.cuda().eval() for m in models("llama", "flash_attention_2"))
    tokens = torch.randint(3, 97, (2, 9)).cuda()
    arguments = {"max_new_tokens": 12, "do_sample": False}
    assert torch.equal(ours.generate(tokens, **arguments), eager.generate(tokens, **arguments))
