"""The CPU backend in a model: directly after operators of torch, and inside a small Llama.

    python benchmarks/cpu_in_model.py [--sections operators,model] [--dtypes bf16,f32]
                                 [--rounds 12] [--threads N]

After an operator the threads of torch's OpenMP runtime spin for some milliseconds and compete with
the threads of another library for the CPUs. "operators" times attention (b 1, h 8, d 64, causal)
alone and after a 512x512 matrix product, interleaved, and prints the ratio of the medians, and that
of torch's own attention. "model" times a Llama of random weights with this library and with torch's
attention: prefill, and one token on a cache.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any, Optional

import cpu_timing as measure

DTYPES = {"bf16": "bfloat16", "f32": "float32"}
LENGTHS = (128, 256, 512, 1024, 2048)
SECTIONS = ("operators", "model")
HEADS, HEAD_DIM, PRODUCT = 8, 64, 512
PREFILL, CACHE = (512, 2048), 1024
# Approximate seconds per time slice of a side: long enough for threads to settle, short enough
# for both sides to run under the same conditions.
SLICE, SETTLE = 0.04, 0.01

Call = Callable[[], object]


def goal_after(length: int) -> float:
    """At most this many times as long after an operator as alone."""
    return 1.05 if length >= 512 else 1.15


def medians(sides: list[tuple[Optional[Call], Call]], rounds: int) -> list[float]:
    """The median time of each side's call, after its preparation, which is not timed. Sides
    alternate.
    """
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for (before, call), found in zip(sides, times):
            time.sleep(SETTLE)
            begin, warm = time.perf_counter(), False
            while not warm or time.perf_counter() - begin < SLICE:
                if before:
                    before()
                start = time.perf_counter()
                call()
                took = time.perf_counter() - start
                if warm:
                    found.append(took)
                warm = True
            if not found:  # a call longer than a time slice
                found.append(took)
    return [statistics.median(found) for found in times]


def operators(dtype: str, rounds: int) -> list[dict[str, Any]]:
    import torch
    import torch.nn.functional as F

    import rocflash

    kind, rows = getattr(torch, DTYPES[dtype]), []
    a, b = (torch.randn(PRODUCT, PRODUCT).to(kind) for _ in "ab")

    def product() -> object:
        return a @ b

    for length in LENGTHS:
        ours = [torch.randn(1, length, HEADS, HEAD_DIM).to(kind) for _ in "qkv"]
        theirs = [x.transpose(1, 2).contiguous() for x in ours]

        def attention(x: list[Any] = ours) -> object:
            return rocflash.attention(*x, causal=True)

        def torchs(x: list[Any] = theirs) -> object:
            return F.scaled_dot_product_attention(*x, is_causal=True)

        sides = [(before, call) for call in (attention, torchs) for before in (None, product)]
        alone, after, torch_alone, torch_after = medians(sides, rounds)
        goal = goal_after(length)
        rows.append(
            {
                "dtype": dtype,
                "length": length,
                "alone_us": alone * 1e6,
                "after_us": after * 1e6,
                "ratio": after / alone,
                "goal": goal,
                "reached": after / alone <= goal,
                "torch_alone_us": torch_alone * 1e6,
                "torch_after_us": torch_after * 1e6,
                "torch_ratio": torch_after / torch_alone,
            }
        )
        times = f"{alone * 1e6:10.0f}{after * 1e6:10.0f}{after / alone:8.2f}{goal:7.2f}"
        comparison = (
            f"{torch_alone * 1e6:11.0f}{torch_after * 1e6:10.0f}{torch_after / torch_alone:8.2f}"
        )
        print(
            f"{dtype:6}{length:6}{times}  {measure.reached(rows[-1]['reached']):8}{comparison}",
            flush=True,
        )
    return rows


def llamas(kind: Any) -> tuple[Any, Any]:
    """The same random weights, with this library's attention and with torch's."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    import rocflash.integrations.transformers as bridge

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=HEADS * HEAD_DIM,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    models = []
    for name in (bridge.register(), "sdpa"):
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation=name, dtype=kind
        )
        if models:
            model.load_state_dict(models[0].state_dict())
        models.append(model.eval())
    return models[0], models[1]


def decode_side(model: Any, tokens: Any) -> tuple[Call, Call]:
    """Removes the last token from the cache and computes one token."""
    cache = model(tokens[:, : CACHE + 1], use_cache=True).past_key_values
    token = tokens[:, :1]
    return lambda: cache.crop(-1), lambda: model(token, past_key_values=cache, use_cache=True)


def in_model(dtype: str, rounds: int) -> list[dict[str, Any]]:
    import torch

    pair, rows = llamas(getattr(torch, DTYPES[dtype])), []
    tokens = torch.randint(3, 1000, (1, max(PREFILL)))
    cases: list[tuple[str, list[tuple[Optional[Call], Call]]]] = [
        (f"prefill {n}", [(None, lambda m=m, n=n: m(tokens[:, :n], use_cache=False)) for m in pair])
        for n in PREFILL
    ]
    cases.append((f"decode at {CACHE}", [decode_side(m, tokens) for m in pair]))
    for name, sides in cases:
        ours, theirs = medians(sides, rounds)
        row = {"dtype": dtype, "case": name, "ours_ms": ours * 1e3, "sdpa_ms": theirs * 1e3}
        rows.append({**row, "ratio": theirs / ours, "goal": 1.0, "reached": theirs >= ours})
        print(
            f"{dtype:6}{name:16}{ours * 1e3:10.2f}{theirs * 1e3:10.2f}"
            f"{theirs / ours:9.2f}x{1.0:7.1f}"
            f"  {measure.reached(theirs >= ours)}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = measure.sections_parser(
        __doc__, SECTIONS, DTYPES, "build/benchmarks/cpu_in_model.json"
    )
    parser.add_argument("--rounds", type=int, default=12)
    given = measure.parse_sections(parser, SECTIONS, DTYPES)
    sections, dtypes = given.sections, given.dtypes

    note = measure.prepare()
    torch = measure.import_torch()
    import rocflash

    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    device = rocflash.devices()[0]
    title = (
        f"{device['name']}, {device['arch']}, {given.threads} threads, torch {torch.__version__}"
    )
    print(title + (f"; {note}" if note else ""))
    report: dict[str, Any] = {"device": device, "torch": torch.__version__, "note": note}
    if "operators" in sections:
        print(f"{'':12}{'rocflash, us':>20}{'':25}{'torch, us':>19}")
        head = f"{'alone':>10}{'after':>10}{'ratio':>8}{'goal':>7}"
        print(f"{'dtype':6}{'S':>6}{head}{'':10}{'alone':>11}{'after':>10}{'ratio':>8}")
        report["operators"] = [row for x in dtypes for row in operators(x, given.rounds)]
    if "model" in sections:
        print(f"\n{'a small Llama':22}{'ours, ms':>10}{'sdpa, ms':>10}{'faster':>10}{'goal':>7}")
        report["model"] = [row for x in dtypes for row in in_model(x, given.rounds)]
    measure.write_json(given.output, report)
    print(f"written: {given.output}")


if __name__ == "__main__":
    main()
