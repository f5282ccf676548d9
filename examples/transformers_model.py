"""Trains and samples a small random Llama of transformers on rocflash.

python examples/transformers_model.py
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rocflash.integrations.transformers as bridge


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation=bridge.register())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    count = torch.arange(3, 35).repeat(8, 1)  # learn to count
    for step in range(40):
        loss = model(input_ids=count, labels=count).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3}  loss {loss.item():.3f}")
    tokens = model.eval().generate(count[:1, :6], max_new_tokens=8, do_sample=False)
    print("continuation:", tokens[0, 6:].tolist())


if __name__ == "__main__":
    main()
