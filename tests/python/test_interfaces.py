"""The other interfaces: FA3, the raw extension, the build guide's, autograd classes, signatures."""

from __future__ import annotations

import inspect

import pytest
import torch

import flash_attention_amd as amd
import flash_attn
import flash_attn.flash_attn_interface as fa2
import flash_attn_2_cuda as raw
import flash_attn_interface as fa3
import rocflash
from reference import attention


def qkv(d: int = 64, hk: int = 2, **options):
    return [torch.randn(2, n, h, d, **options) for n, h in ((21, 4), (29, hk), (29, hk))]


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


FA2_TAIL = (
    "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
    "return_attn_probs"
)
FA3_TAIL = "q_descale k_descale v_descale window_size attention_chunk softcap"
SIGNATURES = {
    fa2.flash_attn_func: f"q k v {FA2_TAIL} s_aux",
    fa2.flash_attn_kvpacked_func: f"q kv {FA2_TAIL}",
    fa2.flash_attn_qkvpacked_func: f"qkv {FA2_TAIL}",
    fa2.flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    f"{FA2_TAIL} block_table s_aux",
    fa2.flash_attn_varlen_kvpacked_func: "q kv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    + FA2_TAIL,
    fa2.flash_attn_varlen_qkvpacked_func: f"qkv cu_seqlens max_seqlen {FA2_TAIL}",
    fa2.flash_attn_with_kvcache: "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens "
    "cache_batch_idx cache_leftpad block_table softmax_scale causal window_size softcap "
    "rotary_interleaved alibi_slopes num_splits return_softmax_lse s_aux",
    fa2._flash_attn_forward: "q k v dropout_p softmax_scale causal window_size_left "
    "window_size_right softcap alibi_slopes return_softmax",
    fa2._flash_attn_varlen_forward: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes "
    "return_softmax block_table leftpad_k seqused_k zero_tensors num_splits",
    fa2._flash_attn_backward: "dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal "
    "window_size_left window_size_right softcap alibi_slopes deterministic rng_state",
    fa2._flash_attn_varlen_backward: "dout q k v out softmax_lse dq dk dv cu_seqlens_q "
    "cu_seqlens_k "
    "max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size_left window_size_right "
    "softcap alibi_slopes deterministic rng_state zero_tensors",
    fa3.flash_attn_func: f"q k v softmax_scale causal qv {FA3_TAIL} num_splits pack_gqa "
    "deterministic sm_margin return_attn_probs s_aux",
    fa3.flash_attn_qkvpacked_func: f"qkv softmax_scale causal {FA3_TAIL} deterministic num_heads_q "
    "sm_margin return_attn_probs",
    fa3.flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    "seqused_q "
    f"seqused_k softmax_scale causal qv {FA3_TAIL} num_splits pack_gqa deterministic sm_margin "
    "return_attn_probs s_aux server_arguments",
    fa3.flash_attn_with_kvcache: "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens "
    "cache_batch_idx cache_leftpad page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q "
    "rotary_seqlens q_descale k_descale v_descale softmax_scale causal window_size attention_chunk "
    "softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin "
    "return_softmax_lse s_aux server_arguments",
    fa3.flash_attn_combine: "out_partial lse_partial out out_dtype",
    amd.flash_attn_func: "q k v dropout_p causal return_attn_probs",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_signatures(function) -> None:
    assert list(inspect.signature(function).parameters) == SIGNATURES[function].split()


def test_names() -> None:
    import importlib

    assert flash_attn.__version__ == "2.8.3" and flash_attn.__rocflash__ == rocflash.__version__
    for name in [
        "FlashAttnFunc",
        "FlashAttnKVPackedFunc",
        "FlashAttnQKVPackedFunc",
        "FlashAttnVarlenFunc",
        "FlashAttnVarlenKVPackedFunc",
        "FlashAttnVarlenQKVPackedFunc",
        "flash_attn_gpu",
        "USE_TRITON_ROCM",
        "maybe_contiguous",
        "round_multiple",
        "_get_block_size_n",
        "_wrapped_flash_attn_forward",
        "_wrapped_flash_attn_varlen_forward",
        "_wrapped_flash_attn_backward",
        "_wrapped_flash_attn_varlen_backward",
    ]:
        assert hasattr(fa2, name), name
    for name in [
        "flash_attn.bert_padding",
        "flash_attn.layers.rotary",
        "flash_attn.ops.triton.rotary",
        "flash_attn.ops.triton.cross_entropy",
        "flash_attn.ops.triton.layer_norm",
        "flash_attn.modules.mha",
        "flash_attn.losses.cross_entropy",
        "flash_attn.flash_attn_triton_amd",
    ]:
        importlib.import_module(name)
    assert fa2.round_multiple(130, 128) == 256


def test_autograd_classes() -> None:
    q, k, v = qkv(requires_grad=True)
    arguments = (0.0, None, True, (-1, -1), 0.0, None, False, False)
    out = fa2.FlashAttnFunc.apply(q, k, v, *arguments, True)
    assert out.requires_grad and torch.equal(out, fa2.flash_attn_func(q, k, v, causal=True))
    assert not fa2.FlashAttnFunc.apply(q, k, v, *arguments, False).requires_grad
    packed = torch.randn(2, 9, 3, 2, 32)
    found = fa2.FlashAttnQKVPackedFunc.apply(packed, *arguments, True)
    assert torch.equal(found, fa2.flash_attn_qkvpacked_func(packed, causal=True))


def test_raw_extension() -> None:
    q, k, v = qkv()
    out, lse, p, rng = raw.fwd(q, k, v, None, None, 0.0, 0.125, True, -1, -1, 0.0, False, None)
    close(out, attention(q, k, v, causal=True)[0])
    assert lse.shape == (2, 4, 21) and p.numel() == 0 and rng.shape == (2,)
    given = torch.empty_like(out)
    found = raw.fwd(q, k, v, given, None, 0.0, 0.125, True, -1, -1, 0.0, False, None)[0]
    assert found is given and torch.equal(given, out)
    grads = raw.bwd(
        out,
        q,
        k,
        v,
        out,
        lse,
        None,
        None,
        None,
        None,
        0.0,
        0.125,
        True,
        -1,
        -1,
        0.0,
        False,
        None,
        rng,
    )
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape, lse.shape]


def test_softmax_d_is_the_librarys_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's: rowsum(dout * out), times 1 - dropout_p. torch does not compute it again."""
    q, k, v = qkv()
    cu_q, cu_k = (torch.tensor([0, n, 2 * n]).int() for n in (q.shape[1], k.shape[1]))
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    for p in (0.0, 0.4):
        numbers = (p, 0.125, True, -1, -1, 0.0)
        out, lse, _, rng = raw.fwd(q, k, v, None, None, *numbers, False, None)
        dout = torch.randn_like(out)
        right = (1 - p) * (dout * out).sum(-1).transpose(1, 2)
        lengths = (cu_q, cu_k, q.shape[1], k.shape[1])
        varlen = raw.varlen_fwd(
            *packed, None, cu_q, cu_k, None, None, None, None, *lengths[2:], p, 0.125, False,
            *numbers[2:], False, None,
        )  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "float", None)
            found = raw.bwd(dout, q, k, v, out, lse, *[None] * 4, *numbers, False, None, rng)[3]
            flat = raw.varlen_bwd(
                dout.flatten(0, 1), *packed, varlen[0], varlen[1], None, None, None, cu_q, cu_k,
                None,
                *lengths[2:], p, 0.125, False, *numbers[2:], False, None, varlen[3],
            )[3]  # fmt: skip
        close(found, right)
        dense = (dout.flatten(0, 1) * varlen[0]).sum(-1).t()
        close(flat, (1 - p) * dense)


def test_raw_varlen_takes_both_argument_counts() -> None:
    q, k, v = (torch.randn(20, 2, 32) for _ in range(3))
    cu = torch.tensor([0, 8, 20]).int()
    used = torch.tensor([5, 12]).int()
    arguments = (
        q,
        k,
        v,
        None,
        cu,
        cu,
        used,
        None,
        None,
        None,
        12,
        12,
        0.0,
        0.2,
        False,
        True,
        -1,
        -1,
        0.0,
    )
    short = raw.varlen_fwd(*arguments, False, None)
    long = raw.varlen_fwd(*arguments, False, None, 0)
    assert torch.equal(short[0], long[0])
    close(
        long[0][None, :8],
        attention(q[None, :8], k[None, :5], v[None, :5], causal=True, scale=0.2)[0],
    )
    out, lse, _, rng = long
    grads = raw.varlen_bwd(
        out, q, k, v, out, lse, None, None, None, cu, cu, None, 12, 12, 0.0, 0.2, False, True,
        -1, -1, 0.0, False, None, rng,
    )  # fmt: skip
    assert grads[3].shape == (2, 20)


def test_fa3_qv_and_chunks() -> None:
    q, k, v = qkv(requires_grad=True)
    qv = torch.randn_like(q, requires_grad=True)
    out, lse = fa3.flash_attn_func(q, k, v, qv=qv, causal=True, return_attn_probs=True)
    assert lse.shape == (2, 4, 21)
    joined = attention(torch.cat((q, qv), -1), torch.cat((k, v), -1), v, causal=True)[0]
    close(out, joined)
    dout = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad(out, (q, k, v, qv), dout),
        torch.autograd.grad(joined, (q, k, v, qv), dout),
    ):
        close(a, b)
    chunked = fa3.flash_attn_func(q, k, v, attention_chunk=8, causal=True)
    position = torch.arange(21)[:, None] + 8
    same = torch.div(position, 8, rounding_mode="floor") == torch.arange(29)[None] // 8
    close(chunked, attention(q, k, v, causal=True, mask=same[None, None])[0])
    with pytest.raises(NotImplementedError, match="^qv has head dimension 400"):
        wide = torch.randn(1, 2, 1, 400)
        fa3.flash_attn_func(wide, wide, wide, qv=wide)


@pytest.mark.parametrize("append", [False, True])
def test_fa3_qv_with_a_cache(append: bool) -> None:
    q, k_cache, v_cache = (
        torch.randn(2, 1, 4, 32),
        torch.randn(2, 40, 2, 32),
        torch.randn(2, 40, 2, 64),
    )
    qv = torch.randn(2, 1, 4, 64)
    k, v = torch.randn(2, 1, 2, 32), torch.randn(2, 1, 2, 64)
    new = {"k": k, "v": v} if append else {}
    lengths = torch.tensor([10, 30]).int()
    out = fa3.flash_attn_with_kvcache(q, k_cache, v_cache, qv=qv, cache_seqlens=lengths, **new)
    for n in range(2):
        used = int(lengths[n]) + int(append)
        keys, values = k_cache[n : n + 1, :used], v_cache[n : n + 1, :used]
        if append:
            assert torch.equal(keys[0, -1], k[n, 0]) and torch.equal(values[0, -1], v[n, 0])
        part = attention(torch.cat((q, qv), -1)[n : n + 1], torch.cat((keys, values), -1), values)[
            0
        ]
        close(out[n : n + 1], part)


def test_fa3_seqused() -> None:
    q, k, v = (torch.randn(20, 2, 32) for _ in range(3))
    cu = torch.tensor([0, 8, 20]).int()
    used_q, used_k = torch.tensor([3, 12]).int(), torch.tensor([7, 2]).int()
    out = fa3.flash_attn_varlen_func(
        q, k, v, cu, cu, 12, 12, seqused_q=used_q, seqused_k=used_k, num_splits=3, pack_gqa=True
    )
    close(out[None, :3], attention(q[None, :3], k[None, :7], v[None, :7])[0])
    assert (out[3:8] == 0).all()
    close(out[None, 8:], attention(q[None, 8:], k[None, 8:10], v[None, 8:10])[0])


def test_fa3_packed_heads() -> None:
    qkv_ = torch.randn(2, 15, 4 + 2 * 2, 32)
    q, k, v = qkv_.split([4, 2, 2], 2)
    close(fa3.flash_attn_qkvpacked_func(qkv_, num_heads_q=4), attention(q, k, v)[0])


def test_fa3_combine() -> None:
    q, k, v = qkv()
    parts = [
        rocflash.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 11), (11, 29))
    ]
    partial = torch.stack([out for out, _ in parts])
    lse = torch.stack([x.transpose(1, 2) for _, x in parts])
    out, total = fa3.flash_attn_combine(partial, lse)
    whole, whole_lse = rocflash.attention(q, k, v, return_lse=True)
    close(out, whole)
    close(total.transpose(1, 2), whole_lse)
    assert fa3.flash_attn_combine(partial, lse, out_dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_fa3_private_forward_and_backward() -> None:
    q, k, v = qkv()
    out, lse, *_ = fa3._flash_attn_forward(q, k, v, causal=True)
    close(out, attention(q, k, v, causal=True)[0])
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    fa3._flash_attn_backward(out, q, k, v, out, lse, dq=dq, dk=dk, dv=dv, is_causal=True)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    for a, b in zip(
        (dq, dk, dv), torch.autograd.grad(attention(*leaves, causal=True)[0], leaves, out)
    ):
        close(a, b)


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
def test_fa3_descales(name: str) -> None:
    """They belong to fp8, which is refused; with other inputs they are unused, as upstream's."""
    q, k, v = qkv(dtype=torch.bfloat16)
    arguments = {name: torch.full((2, 2), 3.0)}
    expected = fa3.flash_attn_func(q, k, v)
    assert torch.equal(fa3.flash_attn_func(q, k, v, **arguments), expected)
    assert torch.equal(fa3._flash_attn_forward(q, k, v, **arguments)[0], expected)
    cache = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=29, **arguments)
    assert torch.equal(cache, fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=29))
    with pytest.raises(TypeError, match=f"^{name} has type float; it must be a torch.Tensor"):
        fa3.flash_attn_func(q, k, v, **{name: 1.0})
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        fa3.flash_attn_func(*(x.to(torch.float8_e4m3fn) for x in (q, k, v)), **arguments)


def test_scheduler_metadata() -> None:
    lengths = torch.tensor([5, 5]).int()
    plan = fa3.get_scheduler_metadata(2, 1, 29, 4, 2, 64, lengths)
    q, k, v = qkv()
    arguments = {"cache_seqlens": lengths, "scheduler_metadata": plan}
    assert fa3.flash_attn_with_kvcache(q, k, v, **arguments).shape == q.shape
    with pytest.raises(ValueError, match="^scheduler_metadata"):
        fa3.flash_attn_with_kvcache(q, k, v, scheduler_metadata=torch.zeros(4))
