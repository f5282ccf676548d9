"""rocflash in SGLang on the CPU: models with latent attention (MLA), and as the default."""

from __future__ import annotations

import types
from typing import Any

import pytest
import server_cases as cases
import servers
import torch
from test_servers import close

CPU = torch.device("cpu")
LATENTS, ROTARY, HEADS = 48, 16, 4


def mla_runner(page_size: int) -> Any:
    runner = cases.SglangRunner(page_size, torch.float32, CPU)
    rows = len(runner.token_to_kv_pool.rows[0])
    runner.token_to_kv_pool = servers.LatentPool(
        rows, LATENTS + ROTARY, LATENTS, torch.float32, CPU
    )
    runner.use_mla_backend = True
    return runner


def absorbed_layer() -> Any:
    return cases.sglang_layer(
        tp_k_head_num=1, tp_v_head_num=1, qk_head_dim=LATENTS + ROTARY, v_head_dim=LATENTS
    )


def latent_kv_rows(runner: Any, request: int, length: int) -> torch.Tensor:
    slots = runner.req_to_token_pool.req_to_token[request, :length].long()
    return runner.token_to_kv_pool.rows[slots]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("new", [None, [3, 6, 1]])
def test_mla_absorbed(page_size: int, new: list[int] | None) -> None:
    """Decode, and chunks after a prefix: queries and the pool have latent and rotary columns."""
    runner = mla_runner(page_size)
    backend, layer = runner.backend(), absorbed_layer()
    lengths = [9, 6, 10]
    counts = new or [1, 1, 1]
    batch = runner.batch([2, 0, 3], lengths, new)
    if new is None:
        backend.init_cuda_graph_state(4, 4)
        backend.init_forward_metadata_out_graph(batch, in_capture=True)
        backend.init_forward_metadata_in_graph(batch)
    else:
        backend.init_forward_metadata(batch)
    tokens = sum(counts)
    q = torch.randn(tokens, HEADS * (LATENTS + ROTARY))
    k = torch.randn(tokens, 1, LATENTS + ROTARY)
    with servers.nothing_read():
        out = backend.forward(q, k, k[..., :LATENTS], layer, batch).view(tokens, HEADS, LATENTS)
    parts = q.view(tokens, HEADS, -1).split(counts)
    for part, found, written, request, length in zip(
        parts, out.split(counts), k.split(counts), (2, 0, 3), lengths
    ):
        rows = latent_kv_rows(runner, request, length)
        assert torch.equal(rows[-len(written) :], written)
        expected = cases.attended(
            part, rows, rows[..., :LATENTS].contiguous(), softmax_scale=0.2, causal=True
        )
        close(found, expected)


def test_mla_prompts() -> None:
    """Without a prefix SGLang passes keys and values of all heads, of different sizes."""
    runner = mla_runner(1)
    backend = runner.backend()
    layer = cases.sglang_layer(
        tp_k_head_num=HEADS, tp_v_head_num=HEADS, qk_head_dim=24, v_head_dim=16
    )
    new = [3, 6, 1]
    batch = runner.batch([2, 0, 3], new, new)
    backend.init_forward_metadata(batch)
    q, k, v = (torch.randn(10, HEADS, size) for size in (24, 24, 16))
    before = runner.token_to_kv_pool.rows.clone()
    with servers.nothing_read():
        out = backend.forward(q.flatten(1), k, v, layer, batch, save_kv_cache=False)
        batch.mha_return_lse = True
        same, lse = backend.forward(q, k, v, layer, batch, save_kv_cache=False)
    assert torch.equal(out, same) and out.shape == (10, HEADS * 16) and lse.shape == (10, HEADS)
    assert torch.equal(before, runner.token_to_kv_pool.rows)
    for a, b, c, found in zip(*(x.split(new) for x in (q, k, v, out.view(10, HEADS, 16)))):
        close(found, cases.attended(a, b, c, softmax_scale=0.2, causal=True))
    with pytest.raises(NotImplementedError, match="^save_kv_cache is True; for MLA"):
        backend.forward(q, k, v, layer, batch)
    batch = runner.batch([2, 0, 3], [4, 6, 1], new)
    backend.init_forward_metadata(batch)
    with pytest.raises(NotImplementedError, match="^extend_prefix_lens is not 0"):
        backend.forward(q, k, v, layer, batch, save_kv_cache=False)


def test_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """On request rocflash is the default, where it supports the server and its model."""
    servers.install_sglang()
    import sglang.srt.plugins.hook_registry as registry

    from rocflash.integrations import sglang

    hooks: dict[str, Any] = {}
    monkeypatch.setattr(
        registry.HookRegistry, "register", lambda target, hook, kind: hooks.update({target: hook})
    )
    monkeypatch.setattr(sglang, "_hooked", False)
    monkeypatch.setenv(sglang.DEFAULT, "0")
    sglang.register()
    assert not hooks
    monkeypatch.setenv(sglang.DEFAULT, "on")
    with pytest.raises(ValueError, match="^ROCFLASH_SGLANG_DEFAULT is 'on'; it must be 0 or 1"):
        sglang.register()
    monkeypatch.setenv(sglang.DEFAULT, "1")
    sglang.register()
    sglang.register()
    ((target, hook),) = hooks.items()
    assert target.endswith(".get_default_attn_backend")

    def selected(arguments: dict[str, Any], **model: Any) -> str:
        about = {"is_encoder_decoder": False, "hf_config": types.SimpleNamespace(), **model}
        return hook(
            lambda *_: "theirs",
            types.SimpleNamespace(**arguments),
            False,
            types.SimpleNamespace(**about),
        )

    assert selected({}) == selected({"kv_cache_dtype": "bfloat16"}) == "rocflash"
    assert selected({"speculative_algorithm": None, "dcp_size": 1}) == "rocflash"
    for arguments in (
        {"kv_cache_dtype": "fp8_e5m2"},
        {"speculative_algorithm": "EAGLE"},
        {"enable_deterministic_inference": True},
        {"dcp_size": 2},
    ):
        assert selected(arguments) == "theirs"
    assert selected({}, is_encoder_decoder=True) == "theirs"
    names = types.SimpleNamespace(architectures=["GptOssForCausalLM"])
    assert selected({}, hf_config=names) == "theirs"
