"""rocflash's backends in vLLM and SGLang on the CPU: their batches compared with the reference."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import server_cases as cases
import servers
import torch

CPU = torch.device("cpu")


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a.float(), b.float(), rtol=1e-4, atol=1e-5)


VLLM = {
    "causal": ({}, {"causal": True}),
    "window": ({"sliding_window": 6}, {"window": (5, 0)}),
    "softcap": ({"logits_soft_cap": 2.0}, {"causal": True, "softcap": 2.0}),
    "alibi": (
        {"alibi_slopes": [0.1, 0.2, 0.3, 0.4]},
        {"causal": True, "alibi_slopes": torch.tensor([0.1, 0.2, 0.3, 0.4])},
    ),
    "sinks": (
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        {"causal": True, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    ),
}


@pytest.mark.parametrize("kind", VLLM)
@pytest.mark.parametrize("heads_first", [True, False])
def test_vllm(kind: str, heads_first: bool) -> None:
    """A prompt, a chunk of one, a decoding sequence; cache in both of vLLM's orders."""
    given, arguments = VLLM[kind]
    impl = cases.vllm_impl(**given)
    batch = cases.VllmBatch([20, 7, 33], [3, 7, 1], torch.float32, CPU, heads_first)
    batch.fill(impl)
    output = torch.full_like(batch.query, 7.0)
    common = batch.common()
    metadata = cases.vllm_builder(CPU).build(0, common)  # reads lengths that vLLM has on the host
    with servers.nothing_read():
        impl.do_kv_cache_update(
            cases.layer(), batch.key, batch.value, batch.cache, metadata.slot_mapping
        )
        found = impl.forward(
            cases.layer(), batch.query, batch.key, batch.value, batch.cache, metadata, output
        )
    assert found is output
    close(output[:11], batch.expected(softmax_scale=0.2, **arguments))
    assert torch.equal(output[11:], torch.full_like(output[11:], 7.0))  # rows that only pad


def test_vllm_without_causal() -> None:
    """Drafts with attention to both sides: windows then have two bounds."""
    impl = cases.vllm_impl(sliding_window=4)
    batch = cases.VllmBatch([20, 9], [5, 9], torch.float32, CPU)
    batch.fill(impl)
    impl.do_kv_cache_update(
        cases.layer(), batch.key, batch.value, batch.cache, batch.slots(old=False)
    )
    metadata = cases.vllm_builder(CPU).build(0, batch.common(causal=False))
    output = torch.empty_like(batch.query)
    impl.forward(cases.layer(), batch.query, None, None, batch.cache, metadata, output)
    close(output[:14], batch.expected(softmax_scale=0.2, window=(3, 3)))


def test_vllm_encoder() -> None:
    """No cache: a sequence's own rows."""
    servers.install_vllm()
    impl = cases.vllm_impl(attn_type=servers.VllmType.ENCODER_ONLY, sliding_window=4)
    batch = cases.VllmBatch([6, 9], [6, 9], torch.float32, CPU)
    metadata = cases.vllm_builder(CPU).build(0, batch.common())
    output = torch.empty_like(batch.query)
    with servers.nothing_read():
        impl.forward(
            cases.layer(), batch.query, batch.key, batch.value, batch.cache, metadata, output
        )
    close(output[:15], batch.expected(softmax_scale=0.2, window=(3, 3)))


def test_vllm_call_conventions() -> None:
    impl = cases.vllm_impl()
    output = torch.ones(3, 4, 32)
    assert not impl.forward(
        cases.layer(), None, None, None, None, None, output
    ).any()  # vLLM measures memory
    builder = cases.vllm_builder(CPU)
    batch = cases.VllmBatch([5], [1], torch.float32, CPU)
    metadata = builder.build(0, batch.common())
    other = builder.update_block_table(metadata, batch.table + 1, batch.slots(False) + 1)
    assert torch.equal(metadata.block_table, batch.table)
    assert torch.equal(other.block_table, batch.table + 1)
    assert other.seq_lens is metadata.seq_lens
    with pytest.raises(NotImplementedError, match="^output_scale is given"):
        impl.forward(
            cases.layer(), *[batch.query] * 3, batch.cache, metadata, output, torch.ones(1)
        )
    with pytest.raises(
        NotImplementedError, match="^kv_cache_dtype is 'fp8'; allowed are auto, float16, bfloat16"
    ):
        cases.vllm_impl(kv_cache_dtype="fp8")
    common = batch.common()
    common.causal = torch.ones(1, dtype=torch.bool)
    with pytest.raises(NotImplementedError, match="^causal is a tensor"):
        builder.build(0, common)


def reasons_against(backend: Any, head_size: int, **given: Any) -> list[str]:
    arguments = {
        **{
            "dtype": torch.bfloat16,
            "kv_cache_dtype": "auto",
            "block_size": 16,
            "use_mla": False,
            "has_sink": False,
        },
        **{"use_sparse": False, "use_mm_prefix": False, "use_per_head_quant_scales": False},
        **{"device_capability": None, "attn_type": "decoder"},
    }
    return backend.validate_configuration(head_size, **{**arguments, **given})


def test_vllm_capabilities() -> None:
    """vLLM's capability queries, and the backend named CUSTOM."""
    cases.vllm_impl()
    from rocflash.integrations.vllm_backend import RocflashBackend as backend

    for size in (32, 72, 80, 128, 256, 576):
        assert (
            reasons_against(
                backend, size, has_sink=True, has_sliding_window=True, use_non_causal=True
            )
            == []
        )
    assert reasons_against(backend, 577) == ["head_size not supported"]
    assert reasons_against(backend, 64, dtype=torch.float32) == []
    assert reasons_against(backend, 64, kv_cache_dtype="fp8") == ["kv_cache_dtype not supported"]
    assert reasons_against(backend, 64, use_mla=True) == ["MLA not supported"]
    assert reasons_against(backend, 64, dtype=torch.float32, kv_cache_dtype="bfloat16") == [
        "a cache of bfloat16 under queries of torch.float32 not supported"
    ]
    assert backend.forward_includes_kv_cache_update is False
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    assert AttentionBackendEnum.CUSTOM.get_class() is backend
    assert backend.get_name() in AttentionBackendEnum.__members__


def mla_backend() -> type:
    cases.vllm_impl()  # registers
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return AttentionBackendEnum.__members__["ROCFLASH_MLA"].get_class()


@contextlib.contextmanager
def vllm_config() -> Iterator[None]:
    """A real vLLM makes layers only where there is a configuration."""
    if not hasattr(sys.modules["vllm"], "__version__"):
        yield
        return
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.mark.parametrize("each, causal", [(1, True), (3, True), (3, False)])
def test_vllm_mla_decode(each: int, causal: bool) -> None:
    """One head of latents and rotary columns, whose first columns are the values; drafts of several
    tokens.
    """
    impl = mla_backend().get_impl_cls()
    sizes = {
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "qk_head_dim": 192,
        "v_head_dim": 128,
    }
    with vllm_config():
        layer = impl(
            4,
            576,
            0.1,
            1,
            None,
            None,
            "auto",
            None,
            "decoder",
            None,
            q_lora_rank=None,
            kv_b_proj=None,
            **sizes,
        )
    layer.need_to_return_lse_for_decode = True
    table = torch.tensor([[1, 4, 0], [2, 3, 7], [5, 0, 0]], dtype=torch.int32)
    lengths = torch.tensor([20, 41, 0], dtype=torch.int32)
    rows = [torch.randn(n, 576) for n in lengths.tolist()]
    cache = torch.zeros(9, 16, 576)
    for n, found in enumerate(rows):
        at = torch.arange(len(found))
        slots = torch.cat([table[n].long()[at // 16] * 16 + at % 16, torch.tensor([-1])])
        new = torch.cat([found, torch.ones(1, 576)])
        layer.do_kv_cache_update(
            new[:, :512], new[:, None, 512:], cache, slots, "auto", torch.ones(()), False
        )
    q = torch.randn(3 * each, 4, 576)
    decode = types.SimpleNamespace(block_table=table, seq_lens=lengths)
    metadata = types.SimpleNamespace(decode=decode, causal=causal, max_seq_len=41)
    with servers.nothing_read():
        out, lse = layer.forward_mqa((q[..., :512], q[..., 512:]), cache, metadata, cases.layer())
    assert (lse[2 * each :] == -torch.inf).all() and not out[2 * each :].any()
    for n in range(2):
        mine = slice(n * each, (n + 1) * each)
        arguments = {"softmax_scale": 0.1, "causal": causal and each > 1}
        keys = rows[n][:, None]
        close(out[mine], cases.attended(q[mine], keys, keys[..., :512].contiguous(), **arguments))


def test_vllm_mla_prefill() -> None:
    """New tokens among themselves, and over a chunk of what came before; values are between other
    columns.
    """
    mla_backend()
    from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum

    sizes = {
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    prefill = MLAPrefillBackendEnum.__members__["ROCFLASH"].get_class()(
        4, 0.1, **sizes, vllm_config=None
    )
    starts, context = (
        torch.tensor([0, 5, 12], dtype=torch.int32),
        torch.tensor([0, 9, 9], dtype=torch.int32),
    )
    prefill.prepare_metadata(types.SimpleNamespace(query_start_loc=starts, max_query_len=7))
    q, k, v = torch.randn(12, 4, 192), torch.randn(12, 4, 192), torch.randn(12, 4, 256)[..., 128:]
    result = torch.empty(12, 4, 128)
    with servers.nothing_read():
        out = prefill.run_prefill_new_tokens(q, k, v, False)
        same, lse = prefill.run_prefill_new_tokens(q, k, v, True, out=result)
        chunk = types.SimpleNamespace(
            query_start_loc=starts, cu_seq_lens=context, max_query_len=7, max_seq_len=9
        )
        before, lse_before = prefill.run_prefill_context_chunk(chunk, q, k[:9], v[:9])
    assert same is result and torch.equal(out, result) and lse.shape == lse_before.shape == (4, 12)
    arguments = {"softmax_scale": 0.1}
    for part in (slice(0, 5), slice(5, 12)):
        close(out[part], cases.attended(q[part], k[part], v[part], causal=True, **arguments))
    close(before[:5], cases.attended(q[:5], k[:9], v[:9], **arguments))
    assert not before[5:].any() and (lse_before[:, 5:] == torch.inf).all()
    with pytest.raises(NotImplementedError, match="^output_scale is given"):
        prefill.run_prefill_new_tokens(q, k, v, False, output_scale=torch.ones(1))


def test_vllm_mla_capabilities() -> None:
    backend = mla_backend()
    assert reasons_against(backend, 576, use_mla=True, use_non_causal=True) == []
    assert reasons_against(backend, 320, use_mla=True) == []
    assert reasons_against(backend, 577, use_mla=True) == ["head_size not supported"]
    assert reasons_against(backend, 576) == ["non-MLA not supported"]
    for name, index, x in (
        ("alibi_slopes", 4, [0.5]),
        ("sliding_window", 5, 8),
        ("logits_soft_cap", 7, 2.0),
    ):
        given = [4, 576, 0.1, 1, None, None, "auto", None, "decoder", None]
        given[index] = x
        with pytest.raises(
            NotImplementedError,
            match=f"^{name} is .*; MLA in vLLM does not support it, so it must be None",
        ):
            backend.get_impl_cls()(*given)


SGLANG = {
    "causal": ({}, {}, {"causal": True}),
    "window": ({"sliding_window_size": 5}, {}, {"window": (5, 0)}),
    "softcap": ({"logit_cap": 2.0}, {}, {"causal": True, "softcap": 2.0}),
    "sinks": ({}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}, {"causal": True}),
    "both sides": ({"attn_type": servers.SglangType.ENCODER_ONLY}, {}, {}),
}


@pytest.mark.parametrize("kind", SGLANG)
@pytest.mark.parametrize("page_size", [1, 4])
def test_sglang_extend(kind: str, page_size: int) -> None:
    about, given, arguments = SGLANG[kind]
    runner = cases.SglangRunner(page_size, torch.float32, CPU)
    backend, layer = runner.backend(), cases.sglang_layer(**about)
    lengths, new = [9, 6, 10], [3, 6, 1]
    batch = runner.batch([2, 0, 3], lengths, new)
    backend.init_forward_metadata(batch)
    q, k, v = (torch.randn(10, h * 32) for h in (4, 2, 2))
    with servers.nothing_read():
        out = backend.forward(q, k, v, layer, batch, **given)
        again, lse = backend.forward(q, None, None, layer, batch, return_lse=True, **given)
    assert out.shape == (10, 128) and lse.shape == (10, 4)
    assert torch.equal(out.view(10, 4, 32), again)
    parts = q.view(10, 4, 32).split(new)
    for part, found, request, length in zip(
        parts, out.view(10, 4, 32).split(new), (2, 0, 3), lengths
    ):
        keys, values = runner.keys_of(request, length, 0)
        assert any(torch.equal(x, keys[-1]) for x in k.view(-1, 2, 32))
        close(found, cases.attended(part, keys, values, softmax_scale=0.2, **arguments, **given))


@pytest.mark.parametrize("window", [False, True])
def test_sglang_decode(window: bool) -> None:
    """With and without a graph's memory; windowed layers may have a pool of their own."""
    runner = cases.SglangRunner(4, torch.float32, CPU, window)
    backend = runner.backend()
    layer = cases.sglang_layer(layer_id=int(window), sliding_window_size=6 if window else -1)
    backend.init_cuda_graph_state(4, 4)
    assert backend.get_cuda_graph_seq_len_fill_value() == 1
    for lengths in ([9, 6, 10], [1, 8, 7]):
        batch = runner.batch([1, 3, 0], lengths)
        q, k, v = (torch.randn(3, h * 32) for h in (4, 2, 2))
        backend.init_forward_metadata(batch)
        out = backend.forward(q, k, v, layer, batch)
        with servers.nothing_read():
            backend.init_forward_metadata_out_graph(batch, in_capture=True)
            backend.init_forward_metadata_in_graph(batch)
            same, lse = backend.forward(q, k, v, layer, batch, return_lse=True)
        assert torch.equal(out.view(3, 4, 32), same) and lse.shape == (3, 4)
        for n, (request, length) in enumerate(zip((1, 3, 0), lengths)):
            keys, values = runner.keys_of(request, length, int(window))
            assert torch.equal(keys[-1], k[n].view(2, 32))
            arguments = {"window": (6, 0)} if window else {"causal": True}
            close(
                same[n : n + 1],
                cases.attended(
                    q[n : n + 1].view(1, 4, 32), keys, values, softmax_scale=0.2, **arguments
                ),
            )


def test_sglang_chunks() -> None:
    """Llama 4's local layers."""
    runner = cases.SglangRunner(1, torch.float32, CPU)
    runner.attention_chunk_size = 4
    backend, layer = runner.backend(), cases.sglang_layer(use_irope=True)
    batch = runner.batch([1], [9], [6])
    backend.init_forward_metadata(batch)
    q = torch.randn(6, 128)
    out = backend.forward(q, torch.randn(6, 64), torch.randn(6, 64), layer, batch).view(6, 4, 32)
    keys, values = runner.keys_of(1, 9, 0)
    arguments = {"softmax_scale": 0.2, "causal": True, "attention_chunk": 4}
    close(out, cases.attended(q.view(6, 4, 32), keys, values, **arguments))


def test_sglang_rejects() -> None:
    runner = cases.SglangRunner(1, torch.float32, CPU)
    backend = runner.backend()
    batch = runner.batch([1], [9], [6])
    backend.init_forward_metadata(batch)
    call = (torch.randn(6, 128), None, None)
    for about, given, words in (
        ({"is_cross_attention": True}, {}, "^is_cross_attention is True"),
        ({"logit_cap": 1.0, "logit_capping_method": "x"}, {}, "^logit_capping_method is 'x'"),
        ({"xai_temperature_len": 8}, {}, "^xai_temperature_len is 8"),
        ({}, {"k_rope": torch.zeros(1)}, "^k_rope is given"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            backend.forward(*call, cases.sglang_layer(**about), batch, **given)
    batch.forward_mode = servers.Mode.TARGET_VERIFY
    with pytest.raises(NotImplementedError, match="^forward_mode is TARGET_VERIFY"):
        backend.init_forward_metadata(batch)
    other = cases.SglangRunner(1, torch.float32, CPU)
    other.kv_cache_dtype = torch.float8_e4m3fn
    with pytest.raises(NotImplementedError, match="^kv_cache_dtype is torch.float8_e4m3fn"):
        other.backend()
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES

    assert ATTENTION_BACKEND_CHOICES.count("rocflash") == 1


def test_synchronization_is_detected() -> None:
    x = torch.ones(1)
    for read in (int, float, bool, lambda x: x.item(), lambda x: x.tolist(), lambda x: x.cpu()):
        with servers.nothing_read(), pytest.raises(AssertionError, match="read on the host"):
            read(x)
    assert int(x) == 1
    with servers.nothing_read("cuda"):
        assert int(x) == 1


def test_entry_points() -> None:
    """The servers find the backends through the distribution's entry points."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for group, module in (("vllm.general_plugins", "vllm"), ("sglang.srt.plugins", "sglang")):
        target = f"rocflash.integrations.{module}:register"
        assert f'[project.entry-points."{group}"]\nrocflash = "{target}"\n' in text
        entry = importlib.metadata.EntryPoint("rocflash", target, group)
        assert callable(entry.load())


def test_old_servers_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    cases.vllm_impl()
    cases.SglangRunner(1, torch.float32, CPU).backend()
    from rocflash.integrations import sglang, vllm

    for module, name in (
        (vllm, "vllm.v1.attention.backends.registry"),
        (sglang, "sglang.srt.layers.attention.attention_registry"),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.warns(UserWarning, match="^rocflash: no attention backend for this"):
            module.register()
