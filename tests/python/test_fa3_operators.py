"""torch.ops.flash_attn_3: upstream's schemas, results, compilation."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest
import torch
from child import succeeds
from torch.fx.experimental.proxy_tensor import make_fx

import flash_attn_interface as fa3
from reference import attention

ops = torch.ops.flash_attn_3

# Upstream's schemas; new arguments at the end are compatible.
SCHEMAS = {
    "fwd": "(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, "
    "Tensor(v_new!)? v_new=None, Tensor? q_v=None, Tensor(out!)? out=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "int? max_seqlen_q=None, int? max_seqlen_k=None, Tensor? page_table=None, "
    "Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
    "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, "
    "Tensor? k_descale=None, Tensor? v_descale=None, float? softmax_scale=None, "
    "bool is_causal=False, int window_size_left=-1, int window_size_right=-1, "
    "int attention_chunk=0, float softcap=0., bool is_rotary_interleaved=False, "
    "Tensor? scheduler_metadata=None, int num_splits=0, bool? pack_gqa=None, int sm_margin=0) "
    "-> (Tensor(out!), Tensor, Tensor, Tensor)",
    "bwd": "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor(dq!)? dq=None, Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, "
    "Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, float softcap=0., bool deterministic=False, int sm_margin=0) "
    "-> (Tensor(dq!), Tensor(dk!), Tensor(dv!), Tensor, Tensor, Tensor, Tensor, Tensor)",
    "fwd_combine": "(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out=None, "
    "ScalarType? out_dtype=None) -> (Tensor(out!), Tensor)",
    "get_scheduler_metadata": "(int batch_size, int max_seqlen_q, int max_seqlen_k, "
    "int num_heads, int num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, "
    "Tensor seqused_k, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? leftpad_k=None, "
    "int? page_size=None, int max_seqlen_k_new=0, bool is_causal=False, "
    "int window_size_left=-1, int window_size_right=-1, int attention_chunk=0, "
    "bool has_softcap=False, int num_splits=0, bool? pack_gqa=None, int sm_margin=0) -> Tensor",
}


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def qkv(**options):
    return [torch.randn(2, n, h, 32, **options) for n, h in ((7, 4), (9, 2), (9, 2))]


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    schema = getattr(ops, name).default._schema
    theirs = torch._C.parse_schema(f"flash_attn_3::{name}{SCHEMAS[name]}")
    assert schema.is_backward_compatible_with(theirs)
    assert theirs.is_backward_compatible_with(schema)
    assert fa3.operators_served_by == "rocflash"


def test_fwd_by_position_and_by_name() -> None:
    """All 34 arguments in their order, as torch's FA3 registry passes them, and a few by name."""
    q, k, v = qkv()
    long = ops.fwd(
        q, k, v, None, None, None, None, None, None, None, None, None, 7, 9, None, None, None,
        None, None, None, None, None, None, 0.2, True, 5, -1, 0, 3.0, True, None, 0, None, 0,
    )  # fmt: skip
    out, lse, out_accum, lse_accum = long
    close(out, attention(q, k, v, causal=True, window=(5, -1), softcap=3.0, scale=0.2)[0])
    assert lse.shape == (2, 4, 7) and lse.dtype == torch.float32
    assert out_accum.numel() == lse_accum.numel() == 0
    named = ops.fwd(
        q, k, v, softmax_scale=0.2, is_causal=True, window_size_left=5, softcap=3.0, num_splits=3
    )
    close(named[0], out)


def test_fwd_writes_into_out() -> None:
    q, k, v = qkv()
    given = torch.empty(2, 4, 7, 32).transpose(1, 2)
    out = ops.fwd(q, k, v, out=given)[0]
    assert out.data_ptr() == given.data_ptr()
    close(given, attention(q, k, v)[0])
    with pytest.raises(ValueError, match="^out"):
        ops.fwd(q, k, v, out=torch.empty(1, 7, 4, 32))


def test_fwd_packed_with_lengths_in_use() -> None:
    q, k, v = (torch.randn(20, h, 32) for h in (4, 2, 2))
    cu = ints(0, 8, 20)
    out, lse, *_ = ops.fwd(
        q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=12, max_seqlen_k=12,
        seqused_k=ints(5, 12), is_causal=True,
    )  # fmt: skip
    assert lse.shape == (4, 20)
    close(out[None, :8], attention(q[None, :8], k[None, :5], v[None, :5], causal=True)[0])


def test_fwd_default_scale_ignores_q_v() -> None:
    """As upstream: the functions take both head dimensions into account, the operator q's alone."""
    q, k, v = qkv()
    q_v = torch.randn(2, 7, 4, 32)
    joined = torch.cat((q, q_v), -1), torch.cat((k, v), -1), v
    close(ops.fwd(q, k, v, q_v=q_v)[0], attention(*joined, scale=32**-0.5)[0])
    close(fa3._flash_attn_forward(q, k, v, qv=q_v)[0], attention(*joined, scale=32**-0.5)[0])
    close(fa3.flash_attn_func(q, k, v, qv=q_v), attention(*joined, scale=64**-0.5)[0])


def test_fwd_appends_to_paged_kv() -> None:
    q, k, v = torch.randn(2, 1, 4, 32), torch.randn(2, 1, 2, 32), torch.randn(2, 1, 2, 32)
    k_pages, v_pages = torch.randn(6, 4, 2, 32), torch.randn(6, 4, 2, 32)
    table = ints(5, 0, 3, 1).view(2, 2)
    out, *_ = ops.fwd(
        q, k_pages, v_pages, k, v, seqused_k=ints(5, 2), page_table=table, is_causal=True
    )
    for n, used in enumerate((6, 3)):
        keys, values = (x[table[n].long()].flatten(0, 1)[None, :used] for x in (k_pages, v_pages))
        assert torch.equal(keys[0, -1], k[n, 0]) and torch.equal(values[0, -1], v[n, 0])
        close(out[n : n + 1], attention(q[n : n + 1], keys, values)[0])


def test_fwd_seqused_q_with_paged_kv() -> None:
    q, pages = torch.randn(2, 3, 4, 32), torch.randn(4, 4, 2, 32)
    table = ints(3, 2, 1, 0).view(2, 2)
    out, *_ = ops.fwd(q, pages, pages, seqused_q=ints(1, 3), seqused_k=ints(5, 8), page_table=table)
    assert (out[0, 1:] == 0).all()
    keys = pages[table[0].long()].flatten(0, 1)[None, :5]
    close(out[:1, :1], attention(q[:1, :1], keys, keys)[0])


def test_fwd_rejects_by_name() -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        ops.fwd(*(x.to(torch.float8_e4m3fn) for x in (q, k, v)), q_descale=torch.ones(2, 2))
    with pytest.raises(ValueError, match="^sm_margin"):
        ops.fwd(q, k, v, sm_margin=-1)
    with pytest.raises(NotImplementedError, match="^seqused_q.*k_new"):
        ops.fwd(q, k, v, k_new=k, v_new=v, seqused_k=ints(0, 0), seqused_q=ints(1, 1))


def test_fwd_is_differentiable() -> None:
    q, k, v = qkv(requires_grad=True)
    out, dout = ops.fwd(q, k, v, is_causal=True)[0], torch.randn(2, 7, 4, 32)
    expected = torch.autograd.grad(attention(q, k, v, causal=True)[0], (q, k, v), dout)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), dout), expected):
        close(a, b)


@pytest.mark.parametrize("given", [False, True])
def test_bwd(given: bool) -> None:
    q, k, v = qkv()
    out, lse, *_ = ops.fwd(q, k, v, is_causal=True)
    dout = torch.randn_like(out)
    into = [torch.empty_like(x) for x in (q, k, v)] if given else [None] * 3
    found = ops.bwd(
        dout, q, k, v, out, lse, *into, None, None, None, None, 7, 9, None, True, -1, -1, 0.0,
        True, 0,
    )  # fmt: skip
    assert len(found) == 8
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(attention(*leaves, causal=True)[0], leaves, dout)
    for a, b, mine in zip(found, expected, into):
        close(a, b)
        assert mine is None or mine.data_ptr() == a.data_ptr()
    close(found[3], (dout * out).sum(-1).transpose(1, 2))


def test_graphs_take_softmax_d_from_the_library() -> None:
    q, k, v = qkv()
    out, lse, *_ = ops.fwd(q, k, v, is_causal=True)
    dout = torch.randn_like(out)

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ops.bwd(x, q, k, v, out, lse, is_causal=True)[:4]

    graph = make_fx(call)(dout)
    names = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert "rocflash.backward.default" in names
    assert not any(name.startswith(("aten.sum", "aten.mul", "aten._to_copy")) for name in names)
    for a, b in zip(graph(dout), call(dout)):
        assert torch.equal(a, b)


def test_combine() -> None:
    """Upstream's way to lay parts out: the sequence is the last of lse's dimensions in memory."""
    parts = torch.randn(3, 2, 4, 7, 32).transpose(2, 3)
    lses = torch.randn(3, 2, 4, 7).transpose(2, 3)
    lses[1:, 0] = float("-inf")
    total = lses.logsumexp(0)
    exact = ((lses - total).exp().unsqueeze(-1) * parts).sum(0)
    out, lse = ops.fwd_combine(parts, lses)
    close(out, exact)
    close(lse, total)
    into = torch.empty(2, 7, 4, 32, dtype=torch.bfloat16)
    found = ops.fwd_combine(parts, lses, into, torch.bfloat16)[0]
    assert found.data_ptr() == into.data_ptr() and torch.equal(into, out.bfloat16())
    assert ops.fwd_combine(parts, lses, out_dtype=torch.float16)[0].dtype == torch.float16


def test_metadata_in_a_caller_buffer() -> None:
    """Servers copy metadata into a buffer that graphs keep, and pass a slice of it."""
    lengths = ints(5, 9)
    keywords = (2, 1, 9, 4, 2, 32, 32, torch.bfloat16, lengths)
    plan = ops.get_scheduler_metadata(*keywords, page_size=16, is_causal=True, num_splits=3)
    assert plan.dtype == torch.int32 and plan.dim() == 1
    buffer = torch.zeros(64, dtype=torch.int32)
    buffer[: len(plan)] = plan
    q, k, v = qkv()
    found = ops.fwd(q, k, v, seqused_k=lengths, scheduler_metadata=buffer[: len(plan)])[0]
    assert torch.equal(found, ops.fwd(q, k, v, seqused_k=lengths)[0])
    for bad in (plan.float(), plan[None]):
        with pytest.raises(ValueError, match="^scheduler_metadata"):
            ops.fwd(q, k, v, scheduler_metadata=bad)
    with pytest.raises(ValueError, match="^seqused_k"):
        ops.get_scheduler_metadata(3, *keywords[1:])


def test_opcheck() -> None:
    q, k, v = qkv()
    torch.library.opcheck(ops.fwd.default, (q, k, v), {"is_causal": True})
    out, lse, *_ = ops.fwd(q, k, v)
    torch.library.opcheck(ops.bwd.default, (out, q, k, v, out, lse))
    torch.library.opcheck(
        ops.fwd_combine.default, (torch.stack((out, out)), torch.randn(2, 2, 7, 4))
    )


def test_meta() -> None:
    q, k, v = (x.to("meta") for x in qkv(dtype=torch.bfloat16))
    out, lse, *_ = ops.fwd(q, k, v)
    assert out.shape == q.shape and out.dtype == torch.bfloat16
    assert lse.shape == (2, 4, 7) and lse.dtype == torch.float32
    assert [x.shape for x in ops.bwd(out, q, k, v, out, lse)[:3]] == [q.shape, k.shape, v.shape]
    used = torch.empty(2, dtype=torch.int32, device="meta")
    assert ops.fwd(q, k, v, k_new=k[:, :1], v_new=k[:, :1], seqused_k=used)[0].shape == q.shape


def test_compile() -> None:
    """Whole graphs that write into a given tensor and append to a cache."""
    q, k, v = qkv()

    def step(q, k_cache, v_cache, k, v, used, out):
        found, *_ = ops.fwd(q * 2, k_cache, v_cache, k, v, seqused_k=used, is_causal=True)
        ops.fwd(q, k_cache, v_cache, out=out, seqused_k=used + 1)
        return found + 1

    new_k, new_v, used = torch.randn(2, 1, 2, 32), torch.randn(2, 1, 2, 32), ints(3, 4)
    results = []
    for function in (step, torch.compile(step, fullgraph=True)):
        k_cache, v_cache, out = k.clone(), v.clone(), torch.empty_like(q)
        found = function(q, k_cache, v_cache, new_k, new_v, used, out)
        results.append((found, k_cache, v_cache, out))
    for eager, compiled in zip(*results):
        close(eager, compiled)
    assert torch.equal(results[1][1][0, 3], new_k[0, 0])


def test_compile_gradients() -> None:
    def loss(q, k, v):
        return ops.fwd(q, k, v, is_causal=True)[0].square().sum()

    leaves = qkv(requires_grad=True)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*leaves), leaves)
    for a, b in zip(found, torch.autograd.grad(loss(*leaves), leaves)):
        close(a, b)


def test_python_raw_calls_compile_in_one_graph() -> None:
    """Upstream's private functions, through which others build their own autograd."""
    q, lengths = torch.randn(2, 9, 4, 32), torch.tensor([3, 4]).int()

    def step(q: torch.Tensor):
        out, lse = fa3._flash_attn_forward(q, q, q, causal=True)[:2]
        dq = torch.empty_like(q)
        fa3._flash_attn_backward(q, q, q, q, out, lse, dq=dq, is_causal=True)
        return out, dq, fa3.get_scheduler_metadata(2, 1, 9, 4, 4, 32, lengths)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(q), step(q)):
        assert torch.equal(a, b)


FOREIGN = """
import warnings, torch
theirs = torch.library.Library("flash_attn_3", "DEF")
theirs.define("fwd(Tensor q, Tensor k, Tensor v) -> Tensor")
theirs.impl("fwd", lambda q, k, v: q + 1, "CPU")
with warnings.catch_warnings(record=True) as recorded:
    warnings.simplefilter("always")
    import flash_attn_interface as fa3
message, = [str(w.message) for w in recorded if "flash_attn_3" in str(w.message)]
assert "registered already" in message and fa3.operators_served_by in message, message
assert fa3.operators_served_by != "rocflash"
q = torch.ones(1, 2, 1, 8)
assert torch.equal(torch.ops.flash_attn_3.fwd(q, q, q), q + 1)
assert not hasattr(torch.ops.flash_attn_3, "bwd")
assert torch.equal(fa3.flash_attn_func(q, q, q), q)
"""


def test_registered_by_another_package() -> None:
    """The import succeeds, names the other package, and leaves all operators to it."""
    succeeds(FOREIGN)


def test_imported_twice() -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.delitem(sys.modules, "flash_attn_3._operators")
        again = importlib.import_module("flash_attn_3._operators")
        assert again.served_by == "rocflash"
    q, k, v = qkv()
    close(ops.fwd(q, k, v)[0], attention(q, k, v)[0])
