#!/usr/bin/env python3
"""Trains a small transformer with MLP blocks with FA2 and FA3, and compares them step by step.

    python benchmarks/benchmark_fa2_vs_fa3_mlp_transformer.py [--preset mi300x|default|cpu]
                                 [--output-json FILE]

Each backend trains in a separate process: forward, backward and optimizer, from the same seed on
the same data.
    fa2       flash_attn with FLASH_ATTENTION_TRITON_AMD_ENABLE=FALSE: the native kernels
    fa3       flash_attn with FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE: the Triton kernels, on the CPU
              in Triton's interpreter
    sdpa      torch's scaled_dot_product_attention with torch's choice of kernel; sdpa_flash and
              sdpa_cudnn select one
    standard  all scores in memory, by torch
fa2 and fa3 run unless --backends names one of them, which then is the whole list; other names come
in addition.

The exit status is 1 if a backend fails, or if losses or first gradients of any two disagree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Metrics = dict[str, Any]

_MI300X = {
    "batch_size": 4,
    "seq_len": 4096,
    "d_model": 1024,
    "n_heads": 16,
    "n_layers": 8,
    "warmup_steps": 20,
    "timed_steps": 80,
    "dtype": "bfloat16",
}
PRESETS: dict[str, dict[str, Any]] = {
    "mi300x": _MI300X,
    "default": {**_MI300X, "seq_len": 2048, "n_layers": 6, "warmup_steps": 10, "timed_steps": 50},
    # Small enough for Triton's interpreter, which takes milliseconds for each operation of a block.
    "cpu": {
        "batch_size": 2,
        "seq_len": 128,
        "d_model": 128,
        "n_heads": 2,
        "n_layers": 2,
        "warmup_steps": 1,
        "timed_steps": 7,
        "dtype": "bfloat16",
    },
}
DTYPES = ("bfloat16", "float16", "float32")
BACKENDS = ("fa2", "fa3", "sdpa", "sdpa_flash", "sdpa_cudnn", "standard")
ALIASES = {"native": "fa2", "triton": "fa3"}
SWITCH = "FLASH_ATTENTION_TRITON_AMD_ENABLE"
VOCABULARY, PERIOD, NOISE, RATE = 256, 16, 0.05, 1e-3

# The allowed effect of rounding on two runs: losses, averaged over a few steps, as a share of the
# first loss, and the norms of the first step's gradients. A wrong mask or scale exceeds one of them
# immediately.
LOSSES_APART, GRADIENTS_APART, SMOOTHED = 0.02, 0.005, 5

# ---------------------------------------------------------------------- one backend, in its process


def attention_of(backend: str) -> Callable[..., Any]:
    """A function of q, k, v (b, s, h, d), causal."""
    import torch
    import torch.nn.functional as F

    if backend in ("fa2", "fa3"):
        from flash_attn import flash_attn_func

        return lambda q, k, v: flash_attn_func(q, k, v, causal=True)

    def transposed(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda q, k, v: function(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    def standard(q: Any, k: Any, v: Any) -> Any:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        return scores.masked_fill(hidden, -math.inf).softmax(-1).to(v.dtype) @ v

    if backend == "standard":
        return transposed(standard)
    sdpa = transposed(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    if backend == "sdpa":
        return sdpa
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernel = SDPBackend.FLASH_ATTENTION if backend == "sdpa_flash" else SDPBackend.CUDNN_ATTENTION

    def pinned(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(kernel):
            return sdpa(q, k, v)

    return pinned


def symbol_of(backend: str, probe: list[Any]) -> str:
    """The symbol of the backend that computes."""
    if backend in ("fa2", "fa3"):
        import flash_attn
        from flash_attn import flash_attn_interface

        if hasattr(flash_attn, "__rocflash__"):
            import rocflash

            return str(rocflash.info().get("backend_symbol", "rocflash_forward in librocflash.so"))
        return str(flash_attn_interface.flash_attn_gpu.__name__)
    if backend == "standard":
        return "torch.softmax"
    import torch
    from torch.nn.attention import SDPBackend

    name = "torch.nn.functional.scaled_dot_product_attention"
    if backend == "sdpa" and hasattr(torch, "_fused_sdp_choice"):
        transposed = [x.transpose(1, 2) for x in probe]
        return f"{name} ({SDPBackend(torch._fused_sdp_choice(*transposed, is_causal=True)).name})"
    return name if backend == "sdpa" else f"{name} ({backend[5:]})"


def model_of(config: dict[str, Any], attend: Callable[..., Any]) -> Any:
    import torch
    from torch import nn

    width, heads = config["d_model"], config["n_heads"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = (
                nn.Linear(width, 3 * width, bias=False),
                nn.Linear(width, width, bias=False),
            )
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            qkv = self.qkv(self.norm_attention(x)).unflatten(-1, (3, heads, width // heads))
            x = x + self.out(attend(*qkv.unbind(2)).flatten(2))
            return x + self.mlp(self.norm_mlp(x))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = (
                nn.Embedding(VOCABULARY, width),
                nn.Embedding(config["seq_len"], width),
            )
            self.blocks = nn.Sequential(*(Block() for _ in range(config["n_layers"])))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            return self.head(self.norm(self.blocks(x)))

    torch.manual_seed(0)  # equal weights for all backends
    return Transformer().to(config["device"])


def batch_of(config: dict[str, Any], step: int) -> Any:
    """Repetitive sequences with noise: prediction needs attention to earlier tokens."""
    import torch

    numbers = torch.Generator().manual_seed(step)
    rows, length = config["batch_size"], config["seq_len"] + 1
    once = torch.randint(VOCABULARY, (rows, PERIOD), generator=numbers)
    tokens = once.repeat(1, -(-length // PERIOD))[:, :length]
    noise = torch.rand(tokens.shape, generator=numbers) < NOISE
    tokens = torch.where(noise, torch.randint(VOCABULARY, tokens.shape, generator=numbers), tokens)
    return tokens.to(config["device"])


class Memory:
    """Peak memory: that of torch's allocator on a GPU, that of the process since construction on
    the CPU.
    """

    def __init__(self, device: str) -> None:
        self._gpu = device != "cpu"
        self._before = 0.0 if self._gpu else self._status("VmRSS")

    @staticmethod
    def _status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    def restart(self) -> None:
        if self._gpu:
            import torch

            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float:
        if self._gpu:
            import torch

            return torch.cuda.max_memory_allocated() / 2**20
        return self._status("VmHWM") - self._before


def _say(backend: str, step: int, config: dict[str, Any], took: float, loss: float) -> None:
    """The progress line: overwritten on a terminal, otherwise printed occasionally."""
    steps = config["warmup_steps"] + config["timed_steps"]
    if not (sys.stderr.isatty() or step == steps or step % max(1, steps // 5) == 0):
        return
    kind = "warm-up" if step <= config["warmup_steps"] else "timed"
    line = f"{backend}: step {step}/{steps} ({kind}), {1e3 * took:.1f} ms, loss {loss:.4f}"
    end = "\n" if not sys.stderr.isatty() or step == steps else "\r"
    print(f"{line:76}", end=end, file=sys.stderr, flush=True)


def load(attend: Callable[..., Any], probe: list[Any]) -> None:
    """Loads everything that a step needs, so that it does not count as the step's memory."""
    import torch

    first = probe[0].requires_grad_()
    attend(*probe).sum().backward()
    torch.optim.AdamW([first]).step()


def train(backend: str, config: dict[str, Any]) -> Metrics:
    """The state of one backend's training, and its results."""
    import torch
    import torch.nn.functional as F

    device, dtype = config["device"], getattr(torch, config["dtype"])
    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.set_device(config["device_index"])
    attend = attention_of(backend)
    probe = [
        torch.zeros(1, 16, 1, config["d_model"] // config["n_heads"], dtype=dtype, device=device)
        for _ in "qkv"
    ]
    symbol = symbol_of(backend, probe)
    load(attend, probe)
    memory = Memory(device)
    model = model_of(config, attend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=on_gpu)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, enabled=dtype is torch.float16)
    times, losses, lengths = [], [], []
    for step in range(1, config["warmup_steps"] + config["timed_steps"] + 1):
        tokens = batch_of(config, step)
        if step == config["warmup_steps"] + 1:
            memory.restart()
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
        if step == 1:
            lengths = [
                x.norm().item() for b in model.blocks for x in b.qkv.weight.grad.float().chunk(3)
            ]
        _say(backend, step, config, times[-1], losses[-1])
    median = statistics.median(times[config["warmup_steps"] :])
    return {
        "median_step_ms": 1e3 * median,
        "steps_per_s": 1 / median,
        "tokens_per_s": config["batch_size"] * config["seq_len"] / median,
        "peak_memory_mib": memory.peak(),
        "final_loss": losses[-1],
        "backend_symbol": symbol,
        "losses": losses,
        "first_gradient_lengths": lengths,
        "step_ms": [1e3 * t for t in times[config["warmup_steps"] :]],
    }


# ---------------------------------------------------------------------------- all of them, compared


def environment_of(backend: str, device: str) -> dict[str, str]:
    """The environment, which selects the backend."""
    env = dict(os.environ)
    if backend in ("fa2", "fa3"):
        env.pop("ROCFLASH_BACKEND", None)  # would say something else
        env[SWITCH] = "TRUE" if backend == "fa3" else "FALSE"
    if backend == "fa3" and device == "cpu":
        env.setdefault("TRITON_INTERPRET", "1")
    return env


def run_isolated(backend: str, config: dict[str, Any]) -> Metrics:
    """train() in a separate process; {"error": …} on failure."""
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "answer.json"
        command = [sys.executable, __file__, "--worker", json.dumps([backend, config, str(answer)])]
        errors = Path(directory) / "errors"
        with errors.open("w") as file:
            worker = subprocess.Popen(
                command,
                env=environment_of(backend, config["device"]),
                stderr=subprocess.PIPE,
                text=True,
            )
            assert worker.stderr is not None
            for piece in iter(lambda: worker.stderr.read(1), ""):  # type: ignore[union-attr]
                sys.stderr.write(piece)
                file.write(piece)
                if piece in "\r\n":
                    sys.stderr.flush()
            code = worker.wait()
        if code == 0 and answer.exists():
            return dict(json.loads(answer.read_text()))
        last = errors.read_text().strip().splitlines()[-1:] or [f"ended with status {code}"]
        return {"error": last[0].strip()}


def curve(losses: list[float]) -> list[float]:
    """The moving average of the losses."""
    return [statistics.fmean(losses[max(0, n + 1 - SMOOTHED) : n + 1]) for n in range(len(losses))]


def disagreements(results: dict[str, Metrics]) -> list[str]:
    """Differences from the first backend that exceed rounding."""
    found = []
    done = {name: r for name, r in results.items() if "error" not in r}
    for name, r in done.items():
        if not all(math.isfinite(x) for x in [*r["losses"], *r["first_gradient_lengths"]]):
            found.append(f"{name}: a loss or gradient is not finite")
    if found or len(done) < 2:
        return found
    first, *others = done
    one = done[first]
    allowed = LOSSES_APART * one["losses"][0]
    for name in others:
        other = done[name]
        pairs = zip(curve(one["losses"]), curve(other["losses"]))
        step, apart = max(enumerate((abs(a - b) for a, b in pairs), 1), key=lambda x: x[1])
        if apart > allowed:
            found.append(
                f"losses of {first} and {name} are {apart:.4f} apart at step {step}; {allowed:.4f} "
                "are allowed"
            )
        pairs = zip(one["first_gradient_lengths"], other["first_gradient_lengths"])
        n, share = max(enumerate(abs(a - b) / max(a, 1e-30) for a, b in pairs), key=lambda x: x[1])
        if share > GRADIENTS_APART:
            found.append(
                f"first gradients of {first} and {name} differ in length by {share:.1%} (layer "
                f"{n // 3}, "
                f"{'qkv'[n % 3]}); {GRADIENTS_APART:.1%} are allowed"
            )
    return found


def summary_of(results: dict[str, Metrics], device: str) -> dict[str, Any]:
    fa2, fa3 = (results.get(name, {"error": "did not run"}) for name in ("fa2", "fa3"))
    both = "error" not in fa2 and "error" not in fa3
    summary: dict[str, Any] = {
        "fa3_speedup_over_fa2": fa2["median_step_ms"] / fa3["median_step_ms"] if both else None,
        "memory_delta_mib": fa3["peak_memory_mib"] - fa2["peak_memory_mib"] if both else None,
        "disagreements": disagreements(results),
        "failed": [name for name, r in results.items() if "error" in r],
    }
    summary["losses_agree"] = not summary["disagreements"]
    if both and fa2["backend_symbol"] == fa3["backend_symbol"]:
        summary["note"] = f"FA3 ran on the same backend as FA2 ({fa2['backend_symbol']})"
    elif both and device == "cpu":
        summary["note"] = (
            "on the CPU FA3 ran in Triton's interpreter, whose time says nothing about a GPU"
        )
    return summary


def print_table(results: dict[str, Metrics], summary: dict[str, Any]) -> None:
    print(
        f"\n{'':11}{'median ms':>10}{'steps/s':>10}{'tokens/s':>12}{'peak MiB':>10}{'loss':>9}  "
        "backend symbol"
    )
    for name, r in results.items():
        if "error" in r:
            print(f"{name:11}failed: {r['error']}")
            continue
        numbers = f"{r['median_step_ms']:10.2f}{r['steps_per_s']:10.2f}{r['tokens_per_s']:12,.0f}"
        print(
            f"{name:11}{numbers}{r['peak_memory_mib']:10.1f}{r['final_loss']:9.4f}  "
            f"{r['backend_symbol']}"
        )
    if summary["fa3_speedup_over_fa2"] is not None:
        print(f"\nFA3 speedup over FA2: {summary['fa3_speedup_over_fa2']:.3f}x")
        print(f"FA3 peak memory minus FA2's: {summary['memory_delta_mib']:+.1f} MiB")
    if "note" in summary:
        print(f"note: {summary['note']}")
    for words in summary["disagreements"]:
        print(f"DISAGREE: {words}")
    if len(results) - len(summary["failed"]) > 1 and not summary["disagreements"]:
        print("losses agree")


def plot(file: str, results: dict[str, Metrics], config: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    done = {name: r for name, r in results.items() if "error" not in r}
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for axis, key, title in (
        (axes[0], "tokens_per_s", "tokens per second"),
        (axes[1], "peak_memory_mib", "peak memory, MiB"),
    ):
        bars = axis.bar(
            list(done), [r[key] for r in done.values()], color=[f"C{n}" for n in range(len(done))]
        )
        axis.bar_label(bars, fmt="{:,.0f}")
        axis.set_title(title)
    for name, r in done.items():
        axes[2].plot(range(1, len(r["losses"]) + 1), r["losses"], label=name)
    axes[2].set(title="loss", xlabel="step")
    axes[2].legend()
    shape = (
        f"b {config['batch_size']}, s {config['seq_len']}, d_model {config['d_model']}, "
        f"{config['n_heads']} heads"
    )
    figure.suptitle(
        f"{config['device_name']}: {shape}, {config['n_layers']} layers, {config['dtype']}"
    )
    figure.savefig(file)


# --------------------------------------------------------------------------------- the command line


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; it must be at least 1")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number}; it must be at least 0")
    return number


def chosen_backends(words: list[str]) -> list[str]:
    names = [ALIASES.get(name, name) for word in words for name in word.split(",") if name]
    for name in names:
        if name not in BACKENDS:
            raise ValueError(
                f"--backends is {name!r}; allowed are {', '.join([*BACKENDS, *ALIASES])}"
            )
    if not {"fa2", "fa3"} & {*names}:
        names = ["fa2", "fa3", *names]
    return list(dict.fromkeys(names))


def resolved(given: argparse.Namespace) -> dict[str, Any]:
    """The configuration: a preset, with the options of the command line."""
    import torch

    from rocflash import Error
    from rocflash.self_test import resolve_device

    try:
        device, _, index = resolve_device(given.device).partition(":")
    except Error as error:
        raise ValueError(f"--device: {error}") from error
    if device == "sim":
        raise ValueError(
            "--device is sim; the simulator's times are not a GPU's, so it must be another"
        )
    preset = given.preset or ("mi300x" if device == "cuda" else "cpu")
    config = dict(PRESETS[preset])
    config.update({name: value for name in config if (value := getattr(given, name)) is not None})
    if config["d_model"] % config["n_heads"]:
        raise ValueError(
            f"--d-model is {config['d_model']}; it must be a multiple of --n-heads, "
            f"{config['n_heads']}"
        )
    name = (
        torch.cuda.get_device_name(int(index or 0))
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    return {
        "preset": preset,
        **config,
        "device": device,
        "device_index": int(index or 0),
        "device_name": name,
        "torch": str(torch.__version__),
    }


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--preset",
        choices=list(PRESETS),
        help="sizes and steps; mi300x by default, cpu where there is no GPU",
    )
    for name in ("batch-size", "seq-len", "d-model", "n-heads", "n-layers", "timed-steps"):
        parser.add_argument(
            f"--{name}", type=_positive, metavar="N", help="instead of the preset's"
        )
    parser.add_argument(
        "--warmup-steps", type=_count, metavar="N", help="instead of the preset's; not timed"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="of activations; weights are float32")
    parser.add_argument(
        "--backends", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(BACKENDS)}"
    )
    parser.add_argument(
        "--device",
        help="auto (the default: a GPU if torch has one), cpu, hip:N (or rocm:N), cuda:N",
    )
    parser.add_argument("--output-json", metavar="FILE", help="results for programs")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="speed, memory and losses as .png, .svg or .pdf (needs matplotlib)",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    given = parsed(arguments)
    if given.worker:
        backend, config, answer = json.loads(given.worker)
        Path(answer).write_text(json.dumps(train(backend, config)))
        return 0
    try:
        backends, config = chosen_backends(given.backends), resolved(given)
        if given.plot:
            import matplotlib  # noqa: F401  (missing, it should be missed before the work)
        if given.output_json:
            Path(given.output_json).touch()
    except (ValueError, ImportError, OSError) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    if config["device"] == "cpu":
        chosen = "" if given.preset else "; preset cpu, which is small"
        print(f"no GPU is used: everything runs on the CPU{chosen}")
    print(", ".join(f"{name} {value}" for name, value in config.items()), flush=True)
    results = {name: run_isolated(name, config) for name in backends}
    summary = summary_of(results, config["device"])
    print_table(results, summary)
    if given.output_json:
        content = {"config": config, **results, "summary": summary}
        Path(given.output_json).write_text(json.dumps(content, indent=2) + "\n")
    if given.plot:
        plot(given.plot, results, config)
    return int(bool(summary["failed"] or summary["disagreements"]))


if __name__ == "__main__":
    sys.exit(main())
