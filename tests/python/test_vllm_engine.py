"""A whole vLLM on the CPU, with its own attention and with rocflash's: the same tokens. Skipped where vLLM is not installed.

vLLM's CPU platform always takes its own backends, so rocflash's are registered in their places.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

ENGINE = """
import json, sys, torch, transformers
folder, model, ours = sys.argv[1], sys.argv[2], sys.argv[3] == "ours"
from pathlib import Path
if not Path(folder).exists():
    torch.manual_seed(0)
    about = dict(vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
    if model == "Llama":
        about.update(num_key_value_heads=2, max_position_embeddings=512)
    else:
        about.update(kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=32, v_head_dim=32)
        about.update(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=64)
        about.update(first_k_dense_replace=2, n_group=1, topk_group=1, num_key_value_heads=4, max_position_embeddings=512)
    config = getattr(transformers, model + "Config")(**about)
    config.architectures = [model + "ForCausalLM"]
    getattr(transformers, model + "ForCausalLM")(config).to(torch.bfloat16).save_pretrained(folder)
from vllm import LLM, SamplingParams
calls = []
if ours:
    import rocflash.integrations.vllm as plugin
    from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum, register_mla_prefill_backend
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    plugin.register()
    register_backend(AttentionBackendEnum.CPU_ATTN, plugin._CLASS)
    for place in (AttentionBackendEnum.CPU_MLA, AttentionBackendEnum.AMX_MLA):
        register_backend(place, plugin._LATENT)
    for place in (MLAPrefillBackendEnum.CPU, MLAPrefillBackendEnum.ZEN_CPU):
        register_mla_prefill_backend(place, plugin._PREFILL)
    from rocflash._torch import calls as library
    for name in ("forward", "decode"):
        def counted(*given, real=getattr(library, name), name=name, **told):
            calls.append(name)
            return real(*given, **told)
        setattr(library, name, counted)
llm = LLM(model=folder, skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True, max_model_len=256, max_num_seqs=4)
draw = torch.Generator().manual_seed(1)
prompts = [{"prompt_token_ids": torch.randint(3, 128, (n,), generator=draw).tolist()} for n in (5, 40, 17, 90)]
found = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, detokenize=False, ignore_eos=True))
print("TOKENS", json.dumps([[list(x.outputs[0].token_ids) for x in found], sorted(set(calls))]))
"""


@pytest.mark.parametrize("model, used", [("Llama", ["decode"]), ("DeepseekV2", ["decode", "forward"])])
def test_the_same_tokens(tmp_path: Path, model: str, used: list[str]) -> None:
    told = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": ""}
    found = {}
    for which in ("theirs", "ours"):
        done = subprocess.run(
            [sys.executable, "-c", ENGINE, str(tmp_path / model), model, which],
            **{"capture_output": True, "text": True, "timeout": 300, "env": {**os.environ, **told}},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (line,) = [x for x in done.stdout.splitlines() if x.startswith("TOKENS")]
        found[which] = json.loads(line.removeprefix("TOKENS "))
    assert found["ours"][0] == found["theirs"][0]
    assert found["ours"][1] == used and found["theirs"][1] == []
