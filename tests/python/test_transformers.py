"""Small random models from their configurations: rocflash against transformers' eager attention."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Gemma2Config, GptOssConfig, LlamaConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import rocflash.integrations.transformers as bridge

bridge.register()
# Its own name, and those of flash_attn, which transformers rejects on the CPU without register().
NAMES = [bridge.NAME, bridge.register("flash_attention_2"), bridge.register("rocflash")]

COMMON = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**COMMON),
    "gemma2": lambda: Gemma2Config(
        **COMMON,
        sliding_window=7,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=None,
        query_pre_attn_scalar=16,
    ),
    "gpt_oss": lambda: GptOssConfig(
        **COMMON, sliding_window=6, num_local_experts=2, num_experts_per_tok=1
    ),
}


def models(kind: str, name: str = bridge.NAME) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The same weights, once with eager attention and once with ours."""
    config = CONFIGS[kind]()
    torch.manual_seed(1)
    eager = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager")
    for part, parameter in eager.named_parameters():
        if "sinks" in part:  # they begin at zero or not at all
            torch.nn.init.normal_(parameter)
    ours = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=name)
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == name
    return eager.eval(), ours.eval()


def calls_of_ours(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the calls that reach the library, by either name."""
    from transformers import modeling_flash_attention_utils as flash

    calls: list[int] = []

    def count(module, name):
        real = getattr(module, name)

        def counted(*args, **kwargs):
            calls.append(1)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(bridge.rocflash, "attention")
    for name in ("_flash_fn", "_flash_varlen_fn"):
        count(flash, name)
    return calls


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients(
    name: str, kind: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, ours = models(kind, name)
    calls = calls_of_ours(monkeypatch)
    tokens = torch.randint(3, 97, (2, 23))
    mask = torch.ones_like(tokens)
    if side != "none":
        where = slice(0, 6) if side == "left" else slice(17, None)
        mask[1, where] = 0
        tokens[1, where] = 0
    # A label counts only if the token before it, which predicts it, is real too.
    labels = tokens.masked_fill((mask == 0) | (mask.roll(1, -1) == 0), -100)
    results = []
    for model in (eager, ours):
        model.train()
        found = model(input_ids=tokens, attention_mask=mask, labels=labels)
        found.loss.backward()
        results.append(found)
    assert len(calls) == 2
    real = mask.bool()
    torch.testing.assert_close(
        results[1].logits[real], results[0].logits[real], rtol=1e-4, atol=1e-5
    )
    grads = {name: p.grad for name, p in eager.named_parameters()}
    assert any("sinks" in name for name in grads) == (kind == "gpt_oss")
    for name, parameter in ours.named_parameters():
        expected = grads[name]
        if expected is None:
            assert parameter.grad is None, name
        else:
            torch.testing.assert_close(
                parameter.grad, expected, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", NAMES)
def test_packed_batch(name: str, kind: str) -> None:
    """Three sequences in one row. With cu_seq_lens each is answered as if it were alone; by
    position_ids alone, as eager attention understands them (gpt-oss does not, so there they run
    together), and flash_attention_2 by itself.
    """
    eager, ours = models(kind, name)
    pieces = [torch.randint(3, 97, (1, n)) for n in (5, 11, 8)]
    with torch.no_grad():
        alone = torch.cat([eager(input_ids=x).logits for x in pieces], dim=1)
        tokens = torch.cat(pieces, dim=1)
        positions = torch.cat([torch.arange(x.shape[1]) for x in pieces])[None]
        by_eager = eager(input_ids=tokens, position_ids=positions, use_cache=False).logits
        by_position = ours(input_ids=tokens, position_ids=positions, use_cache=False).logits
        begins = torch.tensor([0, 5, 16, 24], dtype=torch.int32)
        by_lengths = ours(
            input_ids=tokens,
            position_ids=positions,
            use_cache=False,
            cu_seq_lens_q=begins,
            cu_seq_lens_k=begins,
            max_length_q=11,
            max_length_k=11,
        ).logits
    expected = by_eager if name == bridge.NAME else alone
    torch.testing.assert_close(by_position, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(by_lengths, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", NAMES)
def test_generate(name: str, kind: str) -> None:
    eager, ours = models(kind, name)
    tokens = torch.randint(3, 97, (2, 9))
    tokens[1, :3] = 0
    mask = (tokens != 0).long()
    arguments = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    assert torch.equal(ours.generate(tokens, **arguments), eager.generate(tokens, **arguments))


@pytest.mark.parametrize("name", NAMES)
def test_generate_with_static_caches(name: str) -> None:
    eager, ours = models("llama", name)
    tokens = torch.randint(3, 97, (2, 9))
    arguments = {"max_new_tokens": 12, "do_sample": False}
    found = ours.generate(tokens, cache_implementation="static", disable_compile=True, **arguments)
    assert torch.equal(found, eager.generate(tokens, **arguments))


def test_attention_weights() -> None:
    eager, ours = models("llama")
    tokens = torch.randint(3, 97, (1, 9))
    with torch.no_grad():
        expected = eager(input_ids=tokens, output_attentions=True).attentions
        found = ours(input_ids=tokens, output_attentions=True).attentions
    assert len(found) == len(expected) == 2
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_flash_attention_2_uses_only_flash_attn() -> None:
    """A model that has no flash attention, or lists another kind of it, is answered by transformers
    itself.
    """
    from transformers import PreTrainedModel

    from rocflash.integrations import transformers_flash

    class Without(PreTrainedModel):
        _supports_flash_attn = False

    class Sparse(PreTrainedModel):
        _supports_flash_attn = True
        _compatible_flash_implementations = ("MiniMaxAI/msa",)

    for kind in (Without, Sparse):
        assert not transformers_flash._takes_flash_attn(kind)
    with pytest.raises(ValueError, match="does not support Flash Attention 2"):
        Without(LlamaConfig(**COMMON))._check_and_adjust_attn_implementation("flash_attention_2")
    method = PreTrainedModel._check_and_adjust_attn_implementation
    assert bridge.register("flash_attention_2") == "flash_attention_2"
    assert PreTrainedModel._check_and_adjust_attn_implementation is method
    with pytest.raises(
        ValueError, match="^name is 'my_flash'; it must be 'rocflash' or 'flash_attention_2', or"
    ):
        bridge.register("my_flash")
    with pytest.raises(ValueError, match="^attn_implementation is 'rocflash'; Without does not"):
        Without(LlamaConfig(**COMMON))._check_and_adjust_attn_implementation("rocflash")


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
def test_continuous_batching(kind: str) -> None:
    """Requests of different lengths in one batch, over pages, GPT-OSS and its sinks included."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    eager, ours = models(kind, "rocflash")
    prompts = [torch.randint(3, 97, (n,)).tolist() for n in (5, 19, 11)]
    expected = [
        eager.generate(torch.tensor([x]), max_new_tokens=6, do_sample=False)[0, len(x) :].tolist()
        for x in prompts
    ]
    config = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1)
    cache = ContinuousBatchingConfig(page_size=16, num_blocks=32, max_batch_tokens=64)
    found = ours.generate_batch(prompts, generation_config=config, continuous_batching_config=cache)
    assert ours.config._attn_implementation == "rocflash"
    assert [x.generated_tokens for x in found.values()] == expected


def test_float_mask_has_a_gradient() -> None:
    """A learned bias, as models with relative positions pass it."""
    q, k, v = (torch.randn(2, 4, 7, 16) for _ in range(3))
    bias = torch.randn(1, 4, 7, 7, requires_grad=True)
    module = torch.nn.Identity()
    out, _ = bridge.attention_forward(module, q, k, v, bias, scaling=0.25)
    dout = torch.randn_like(out)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, scale=0.25)
    expected = torch.autograd.grad(exact.transpose(1, 2), bias, dout)[0]
    torch.testing.assert_close(
        torch.autograd.grad(out, bias, dout)[0], expected, rtol=1e-4, atol=1e-5
    )
