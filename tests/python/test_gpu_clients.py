"""Clients on a GPU: their calls, rocflash's backends in servers with graphs, helpers, operators'
names.

Needs a GPU that torch can use (CUDA or ROCm); skipped without one.
"""

from __future__ import annotations

from typing import Any

import client_calls
import pytest
import server_cases as cases
import servers
import torch
from test_client_calls import judged

import rocflash
from flash_attn import flash_attn_func

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU here")
DTYPE = torch.bfloat16
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("name", client_calls.CALLS)
def test_call(name: str) -> None:
    judged(name, client_calls.CALLS[name](client_calls.Inputs(GPU, DTYPE)), DTYPE)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a.float().cpu(), b.float().cpu(), rtol=0.02, atol=0.02)


def captured(step: Any) -> torch.cuda.CUDAGraph:
    """A graph of one step, after the runs that torch wants on a side stream first."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), servers.nothing_read("cuda"):
        step()
    return graph


@pytest.mark.parametrize("sinks", [False, True])
def test_vllm_backend(sinks: bool) -> None:
    arguments = {"sinks": torch.randn(4, device=GPU).to(DTYPE)} if sinks else {}
    impl = cases.vllm_impl(sliding_window=9, **arguments)
    batch = cases.VllmBatch([20, 7, 33], [3, 7, 1], DTYPE, GPU)
    batch.fill(impl)
    metadata = cases.vllm_builder(GPU).build(0, batch.common())
    output = torch.empty_like(batch.query)
    with servers.nothing_read("cuda"):
        impl.do_kv_cache_update(
            cases.layer(), batch.key, batch.value, batch.cache, metadata.slot_mapping
        )
        impl.forward(
            cases.layer(), batch.query, batch.key, batch.value, batch.cache, metadata, output
        )
    close(output[:11], batch.expected(softmax_scale=0.2, window=(8, 0), **arguments))


def test_vllm_backend_in_a_graph() -> None:
    """Captured for one batch of decoding sequences, replayed for another with other lengths, pages
    and slots.
    """
    impl = cases.vllm_impl()
    first = cases.VllmBatch([20, 7, 30], [1, 1, 1], DTYPE, GPU)
    builder = cases.vllm_builder(GPU)
    metadata = builder.build_for_cudagraph_capture(first.common())
    query, key, value = (x.clone() for x in (first.query, first.key, first.value))
    output = torch.empty_like(query)

    def step() -> None:
        impl.do_kv_cache_update(cases.layer(), key, value, first.cache, metadata.slot_mapping)
        impl.forward(cases.layer(), query, key, value, first.cache, metadata, output)

    graph = captured(step)
    for lengths in ([20, 7, 30], [3, 32, 17], [1, 1, 32]):
        batch = cases.VllmBatch(lengths, [1, 1, 1], DTYPE, GPU)
        if batch.table.shape != metadata.block_table.shape:
            wide = torch.zeros_like(metadata.block_table)
            wide[:, : batch.table.shape[1]] = batch.table
            batch.table = wide
        batch.cache = first.cache
        batch.fill(impl)
        common = batch.common()
        for into, x in (
            (metadata.seq_lens, common.seq_lens),
            (metadata.block_table, batch.table),
            (metadata.slot_mapping, common.slot_mapping),
            (query, batch.query),
            (key, batch.key),
            (value, batch.value),
        ):
            into.copy_(x)
        graph.replay()
        close(output[:3], batch.expected(softmax_scale=0.2, causal=True))


def test_fa3_decode_in_a_graph() -> None:
    """The functions of servers' builds, with metadata in a server buffer."""
    import flash_attn_interface as fa3

    make = client_calls.Inputs(GPU, DTYPE)
    q, out, sinks = make(2, 1, 4, 64), make(2, 1, 4, 64), make(4)
    keys, values = make.pages()
    used, table = make.ints([20, 7]), make.ints([[3, 1], [0, 5]])
    plan = fa3.get_scheduler_metadata(2, 1, 32, 4, 2, 64, used)
    ones = torch.ones(2, 2, device=GPU)

    def step() -> None:
        fa3.flash_attn_with_kvcache(
            q, keys, values, cache_seqlens=used, page_table=table, causal=True,
            scheduler_metadata=plan, sinks=sinks,
            attention_chunk=None, out=out, k_descale=ones, v_descale=ones,
        )  # fmt: skip

    graph = captured(step)
    used.copy_(make.ints([32, 1]))
    table.copy_(make.ints([[2, 4], [5, 0]]))
    graph.replay()
    for n, (pages, length) in enumerate((([2, 4], 32), ([5], 1))):
        rows = [x[pages].flatten(0, 1)[:length] for x in (keys, values)]
        close(out[n], cases.attended(q[n], *rows, sinks=sinks))


@pytest.mark.parametrize("page_size", [1, 16])
def test_sglang_backend(page_size: int) -> None:
    runner = cases.SglangRunner(page_size, DTYPE, GPU)
    backend, layer = runner.backend(), cases.sglang_layer(sliding_window_size=5)
    lengths, new = [9, 6, 10], [3, 6, 1]
    batch = runner.batch([2, 0, 3], lengths, new)
    backend.init_forward_metadata(batch)
    q, k, v = (torch.randn(10, h * 32, device=GPU).to(DTYPE) for h in (4, 2, 2))
    sinks = torch.randn(4, device=GPU)
    with servers.nothing_read("cuda"):
        out = backend.forward(q, k, v, layer, batch, sinks=sinks).view(10, 4, 32)
    for part, found, request, length in zip(
        q.view(10, 4, 32).split(new), out.split(new), (2, 0, 3), lengths
    ):
        keys = runner.keys_of(request, length, 0)
        close(found, cases.attended(part, *keys, softmax_scale=0.2, window=(5, 0), sinks=sinks))


@pytest.mark.parametrize("window", [False, True])
def test_sglang_backend_in_a_graph(window: bool) -> None:
    """Tables and lengths are made inside of the graph, from the requests that it is replayed
    for.
    """
    runner = cases.SglangRunner(4, DTYPE, GPU, window)
    backend = runner.backend()
    layer = cases.sglang_layer(layer_id=int(window), sliding_window_size=6 if window else -1)
    backend.init_cuda_graph_state(4, 4)
    batch = runner.batch([1, 3, 0], [9, 6, 10])
    q, k, v = (torch.randn(3, h * 32, device=GPU).to(DTYPE) for h in (4, 2, 2))
    results = []

    def step() -> None:
        backend.init_forward_metadata_in_graph(batch)
        results[:] = [backend.forward(q, k, v, layer, batch)]

    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    graph = captured(step)
    for requests, lengths in (([1, 3, 0], [9, 6, 10]), ([2, 0, 1], [33, 1, 7])):
        other = runner.batch(requests, lengths)
        for name in ("req_pool_indices", "seq_lens", "out_cache_loc"):
            getattr(batch, name).copy_(getattr(other, name))
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
        backend.init_forward_metadata_out_graph(batch)
        graph.replay()
        for n, (request, length) in enumerate(zip(requests, lengths)):
            keys = runner.keys_of(request, length, int(window))
            arguments = {"window": (6, 0)} if window else {"causal": True}
            found = results[0][n : n + 1].view(1, 4, 32)
            close(
                found,
                cases.attended(q[n : n + 1].view(1, 4, 32), *keys, softmax_scale=0.2, **arguments),
            )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rotary(dtype: torch.dtype, interleaved: bool) -> None:
    """One kernel with the formula's bits: views, in place, packed, with gradients, in a graph."""
    from flash_attn.ops.triton.rotary import apply_rotary
    from rocflash._torch import rotary

    angles = torch.rand(80, 20, device=GPU) * 6
    cos, sin = angles.cos(), angles.sin()
    qkv = torch.randn(2, 65, 3, 5, 48, device=GPU).to(dtype)
    x = qkv[:, :, 1]
    arguments = {"interleaved": interleaved}
    expected = rotary.formula(x, cos[3:68], sin[3:68], **arguments)
    assert torch.equal(apply_rotary(x, cos, sin, seqlen_offsets=3, **arguments), expected)
    own = qkv.clone()
    apply_rotary(own[:, :, 1], cos, sin, seqlen_offsets=3, inplace=True, **arguments)
    assert torch.equal(own[:, :, 1], expected) and torch.equal(own[:, :, ::2], qkv[:, :, ::2])
    offsets = torch.tensor([3, 7], device=GPU, dtype=torch.int32)
    packed = x.flatten(0, 1)
    cu = torch.tensor([0, 65, 130], device=GPU, dtype=torch.int32)
    with servers.nothing_read("cuda"):
        found = apply_rotary(packed, cos, sin, offsets, cu, 65, **arguments)
        again = apply_rotary(x, cos, sin, offsets, **arguments)
    assert torch.equal(found[:65], expected[0]) and torch.equal(again.flatten(0, 1), found)
    leaf = x.clone().requires_grad_()
    dout = torch.randn_like(leaf)
    (dx,) = torch.autograd.grad(apply_rotary(leaf, cos, sin, **arguments), leaf, dout)
    assert torch.equal(dx, rotary.formula(dout, cos[:65], sin[:65], conjugate=True, **arguments))
    into, results = x.clone(), []

    def step() -> None:
        results[:] = [apply_rotary(into, cos, sin, offsets, **arguments)]

    graph = captured(step)
    into.copy_(torch.randn_like(into))
    offsets.fill_(1)
    graph.replay()
    assert torch.equal(results[0], rotary.formula(into, cos[1:66], sin[1:66], **arguments))


def test_cross_entropy_memory() -> None:
    """In place: forward and backward need a few blocks, not a copy of the logits."""
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    logits = torch.randn(1024, 64000, device=GPU, dtype=DTYPE, requires_grad=True)  # 131 MB
    own = logits * 1.0
    labels = torch.randint(0, 64000, (1024,), device=GPU)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = cross_entropy_loss(own, labels, inplace_backward=True)[0].sum()
    torch.autograd.grad(loss, own)
    assert torch.cuda.max_memory_allocated() - before < 100e6
    exact = logits.detach()[:4].double().requires_grad_()
    torch.nn.functional.cross_entropy(exact, labels[:4], reduction="sum").backward()
    torch.testing.assert_close(own.detach()[:4].double(), exact.grad, rtol=0.01, atol=1e-4)


def test_dropout_is_replayed_without_synchronization() -> None:
    """rng_state is on the GPU, as upstream's, and backward neither synchronizes for it nor breaks a
    capture.
    """
    from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward

    q, k, v = (torch.randn(2, 64, 4, 64, device=GPU).to(DTYPE) for _ in range(3))
    arguments = (0.3, 0.125, True, -1, -1, 0.0, None)
    found = []

    def step() -> None:
        out, lse, _, state = _flash_attn_forward(q, k, v, *arguments, False)
        grads = [torch.empty_like(x) for x in (q, k, v)]
        _flash_attn_backward(q, q, k, v, out, lse, *grads, *arguments, False, state)
        found[:] = [out, state, *grads]

    captured(step).replay()
    out, state, *grads = found
    assert state.device == q.device and state.dtype is torch.int64
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    again = rocflash.attention(
        *leaves, dropout_p=0.3, softmax_scale=0.125, causal=True, rng_state=state.cpu()
    )
    close(out, again)
    for a, b in zip(grads, torch.autograd.grad(again, leaves, q)):
        close(a, b)


def test_operator_names() -> None:
    from test_operator_names import Recorder

    q, k, v = (torch.randn(2, 64, 4, 64, device=GPU).to(DTYPE).requires_grad_() for _ in range(3))
    mode = Recorder()
    with mode:
        flash_attn_func(q, k, v, causal=True).sum().backward()
    assert mode.names == [
        f"flash_attn._flash_attn_{way}.default" for way in ("forward", "backward")
    ]
    expected = torch.autograd.grad(flash_attn_func(q, k, v, causal=True).sum(), (q, k, v))
    for x, y in zip((q, k, v), expected):
        close(x.grad, y)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_transformers(kind: str) -> None:
    """transformers' flash_attention_2 on the GPU, padded, with sinks where the model has them."""
    pytest.importorskip("transformers")
    import test_transformers as models

    eager, ours = (x.to(GPU) for x in models.models(kind, "flash_attention_2"))
    tokens = torch.randint(3, 97, (2, 23), device=GPU)
    mask = torch.ones_like(tokens)
    mask[1, :6] = 0
    with torch.no_grad():
        expected = eager(input_ids=tokens, attention_mask=mask).logits
        found = ours(input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-2, atol=1e-3)


def test_torch_activates_rocflash() -> None:
    """varlen_attn, by torch's registry of implementations."""
    attention = pytest.importorskip("torch.nn.attention")
    if not hasattr(attention, "activate_flash_attention_impl"):
        pytest.skip("torch.nn.attention has no registry before torch 2.11")
    from torch.nn.attention.varlen import varlen_attn

    from rocflash.integrations import torch_attention

    q, k, v = (torch.randn(40, 4, 64, device=GPU).to(DTYPE) for _ in range(3))
    cu = torch.tensor([0, 9, 40], device=GPU, dtype=torch.int32)
    attention.activate_flash_attention_impl(torch_attention.register())
    try:
        out = varlen_attn(q, k, v, cu, cu, 31, 31, window_size=(-1, 0))
    finally:
        attention.restore_flash_attention_impl(_raise_warn=False)
    for a, b in ((0, 9), (9, 40)):
        close(out[a:b], cases.attended(q[a:b], k[a:b], v[a:b], causal=True))
