"""Fine-tunes a causal language model of transformers with rocflash's attention, without padding.

    python examples/finetune.py                               # a small random Llama, offline
    python examples/finetune.py --model MODEL --text FILE     # one sample per line of the file

transformers' Trainer flattens the samples of a batch into one row (DataCollatorWithFlattening). The
attention gets their lengths as `cu_seq_lens_q` and `cu_seq_lens_k`, so that samples do not attend
to each other and no token is padding. Afterwards the loss of the tuned model is compared with that
of transformers' own eager attention over one sample at a time.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

import rocflash.integrations.transformers as bridge

Sample = dict[str, list[int]]


def small_model() -> LlamaForCausalLM:
    """Byte by byte, with random weights."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM._from_config(config, attn_implementation=bridge.register())


def samples(lines: list[str], encode) -> list[Sample]:
    tokens = [encode(line) for line in lines if line.strip()]
    return [{"input_ids": t, "labels": list(t)} for t in tokens if len(t) > 1]


@torch.no_grad()
def mean_loss(model: torch.nn.Module, data: list[Sample], attention: str) -> float:
    """Over all predicted tokens, one sample at a time."""
    model.set_attn_implementation(attention)
    total = count = 0.0
    for sample in data:
        ids = torch.tensor([sample["input_ids"]], device=model.device)
        predicted = ids.shape[1] - 1
        total += model(input_ids=ids, labels=ids).loss.item() * predicted
        count += predicted
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a name on the hub or a directory; default: a small one")
    parser.add_argument("--text", type=Path, help="default: the text above")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--output", type=Path, help="directory of the tuned model")
    options = parser.parse_args()
    set_seed(0)
    if options.model:
        encode = AutoTokenizer.from_pretrained(options.model).encode
        model = AutoModelForCausalLM.from_pretrained(
            options.model, attn_implementation=bridge.register()
        )
    else:
        encode, model = (lambda line: list(line.encode())), small_model()
    text = options.text.read_text() if options.text else __doc__
    data = samples(text.splitlines(), encode)
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=directory,
                max_steps=options.steps,
                per_device_train_batch_size=8,
                learning_rate=options.learning_rate,
                logging_steps=max(options.steps // 3, 1),
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),
            ),
            train_dataset=data,
            data_collator=DataCollatorWithFlattening(return_flash_attn_kwargs=True),
        )
        before = mean_loss(model, data, bridge.register())
        trainer.train()
    model.eval()
    after = mean_loss(model, data, bridge.register())
    eager = mean_loss(model, data, "eager")
    print(f"loss {before:.3f} before, {after:.3f} after; {eager:.3f} with eager attention")
    if not math.isclose(after, eager, rel_tol=1e-3):
        raise SystemExit("the losses of rocflash's and of eager attention differ")
    if not after < before:
        raise SystemExit("the loss did not fall")
    if options.output:
        model.save_pretrained(options.output)


if __name__ == "__main__":
    main()
