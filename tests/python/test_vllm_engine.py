"""A complete vLLM on the CPU, with its own attention and with rocflash's: equal tokens. Skipped
without vLLM.

rocflash is selected as a user does it, by ROCFLASH_VLLM_DEFAULT=1. Prompts are longer than a step,
share a prefix, and do not all fit into the cache, so that they are computed in chunks, found in the
prefix cache, preempted and computed again.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"
)

ENGINE = """
import json, sys, torch, transformers
from pathlib import Path
directory, model, drafts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
windowed = ["sliding_attention", "full_attention"]
models = {
    "Llama": {},
    "Qwen3": dict(head_dim=32),
    "Gemma2": dict(head_dim=32, sliding_window=24, attn_logit_softcapping=5.0,
                   query_pre_attn_scalar=32, layer_types=windowed),
    "Gemma3": dict(head_dim=32, sliding_window=24, query_pre_attn_scalar=32,
                   layer_types=windowed),
    "GptOss": dict(head_dim=32, sliding_window=24, num_local_experts=4, num_experts_per_tok=2,
                   layer_types=windowed),
    "DeepseekV2": dict(kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64,
                       qk_nope_head_dim=32, v_head_dim=32, n_routed_experts=4,
                       num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=64,
                       first_k_dense_replace=2, n_group=1, topk_group=1, num_key_value_heads=4),
}
if not Path(directory).exists():
    torch.manual_seed(0)
    about = dict(vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
    about.update(models[model])
    name = model + ("Text" if model == "Gemma3" else "")
    config = getattr(transformers, name + "Config")(**about)
    config.architectures = [model + "ForCausalLM"]
    made = getattr(transformers, model + "ForCausalLM")(config)
    for parameter in made.parameters():  # peaked distributions: no ties between tokens
        torch.nn.init.normal_(parameter, std=0.2)
    made.save_pretrained(directory)
calls = []
from rocflash._torch import calls as library
for name in ("forward", "decode"):
    def counted(*given, real=getattr(library, name), name=name, **arguments):
        calls.append(name)
        return real(*given, **arguments)
    setattr(library, name, counted)
from vllm import LLM, SamplingParams
# Too few for all prompts at once. Windowed layers have tables of their own; pages of MLA have 16
# rows.
blocks = 12 if "layer_types" in models[model] else 14 if model == "DeepseekV2" else 7
speculative = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_max=3,
                   prompt_lookup_min=1) if drafts else None
llm = LLM(model=directory, skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
          max_model_len=128, max_num_seqs=4, max_num_batched_tokens=64, block_size=32,
          num_gpu_blocks_override=blocks, enable_prefix_caching=True,
          speculative_config=speculative, disable_log_stats=False)
draw = torch.Generator().manual_seed(1)
shared = torch.randint(3, 128, (40,), generator=draw).tolist()
prompts = [{"prompt_token_ids": (shared if n > 40 else [])
            + torch.randint(3, 128, (n % 40,), generator=draw).tolist()}
           for n in (5, 60, 17, 70, 75)]
sampling = SamplingParams(temperature=0, max_tokens=24, detokenize=False, ignore_eos=True)
found = []
for _ in range(2):  # the second time from the prefix cache
    found += [list(x.outputs[0].token_ids) for x in llm.generate(prompts, sampling)]
counts = {x.name: x.value for x in llm.get_metrics() if hasattr(x, "value")}
met = {name: counts["vllm:" + name] for name in ("num_preemptions", "prefix_cache_hits")}
print("TOKENS", json.dumps([found, sorted(set(calls)), met]))
"""


def tokens_of(directory: Path, model: str, drafts: bool, ours: bool) -> list:
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "ROCFLASH_VLLM_DEFAULT": str(int(ours)),
    }
    start = ENGINE
    if not importlib.metadata.entry_points(group="vllm.general_plugins", name="rocflash"):
        # Not installed but on the path: what the entry point does.
        start = "import rocflash.integrations.vllm as plugin\nplugin.register()\n" + ENGINE
    done = subprocess.run(
        [sys.executable, "-c", start, str(directory), model, json.dumps(drafts)],
        capture_output=True, text=True, timeout=300, env={**os.environ, **settings},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("TOKENS")]
    return json.loads(line.removeprefix("TOKENS "))


@pytest.mark.parametrize(
    "model, drafts, used",
    [
        ("Llama", False, ["decode"]),
        ("Llama", True, ["decode"]),
        ("Qwen3", False, ["decode"]),
        ("Gemma2", False, ["decode"]),
        ("Gemma3", False, ["decode"]),
        ("GptOss", False, ["decode"]),
        ("DeepseekV2", False, ["decode", "forward"]),
    ],
)
def test_the_same_tokens(tmp_path: Path, model: str, drafts: bool, used: list[str]) -> None:
    theirs = tokens_of(tmp_path / model, model, drafts, ours=False)
    ours = tokens_of(tmp_path / model, model, drafts, ours=True)
    assert ours[0] == theirs[0]
    assert ours[1] == used and theirs[1] == []
    if model == "Llama" and not drafts:  # what the prompts are for
        assert min(ours[2].values()) > 0, ours[2]
