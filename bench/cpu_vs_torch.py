"""This library against torch's own attention on the CPU: one run, the same threads, the same inputs.

    python bench/cpu_vs_torch.py [--quick] [--ops decode] [--dtypes f32,bf16] [--threads N] [--output bench.json] [--plot bench.png]

Forward and backward, f32, bf16 and f16, head sizes 64 and 128, 512 to 8192 tokens, causal and not, grouped
heads, and decoding one query over a long cache. Ratios above 1 say that this library is faster. On some
virtual machines oneDNN inside torch trusts a CPUID leaf that is empty and dies of it; it is told so here, before
torch is imported.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch
import torch.nn.functional as F

import rocflash

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass
class Case:
    op: str  # forward, backward or decode
    dtype: str
    d: int
    sq: int
    sk: int
    h: int = 8
    hk: int = 8
    causal: bool = False
    batch: int = 1

    def flops(self) -> float:
        """Useful work: 4 per query, key and column, half of it when causal, 2.5 times in backward."""
        once = 4.0 * self.batch * self.h * self.sq * self.sk * self.d
        return once * (0.5 if self.causal else 1.0) * (2.5 if self.op == "backward" else 1.0)

    def label(self) -> str:
        heads = "" if self.h == self.hk else f" h{self.h}/{self.hk}"
        return f"{self.op} {self.dtype} d{self.d} {self.sq}x{self.sk}{heads}{' causal' if self.causal else ''}"


def cases(quick: bool) -> Iterator[Case]:
    lengths = (512, 2048) if quick else (512, 1024, 2048, 4096, 8192)
    for op in ("forward", "backward"):
        for dtype in DTYPES:
            for d in (64, 128):
                for length in lengths:
                    for causal in (False, True):
                        yield Case(op, dtype, d, length, length, causal=causal)
        yield Case(op, "bf16", 128, lengths[-2], lengths[-2], 8, 2, True)
        yield Case(op, "f32", 64, lengths[-2], lengths[-2], 8, 1, True)
    for dtype in DTYPES:
        for length in lengths:
            yield Case("decode", dtype, 128, 1, length, 8, 8, batch=4)
            yield Case("decode", dtype, 128, 1, length, 8, 2, batch=4)
        for length in (4096,) if quick else (4096, 32768):
            yield Case("decode", dtype, 128, 1, length, 32, 8)


def best_seconds(call: Callable[[], object], budget: float) -> float:
    """The best of at least three runs; the best is the least disturbed by other programs."""
    call()
    best, spent, runs = math.inf, 0.0, 0
    while runs < 3 or spent < budget:
        begin = time.perf_counter()
        call()
        took = time.perf_counter() - begin
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


def measure(case: Case, budget: float) -> dict[str, object]:
    """Both sides by turns, each with the layout that it likes best."""
    torch.manual_seed(0)
    dtype, grad = DTYPES[case.dtype], case.op == "backward"
    shapes = ((case.sq, case.h), (case.sk, case.hk), (case.sk, case.hk))
    ours = [torch.randn(case.batch, n, h, case.d).to(dtype).requires_grad_(grad) for n, h in shapes]
    theirs = [x.detach().transpose(1, 2).contiguous().requires_grad_(grad) for x in ours]
    told = {"is_causal": case.causal, "enable_gqa": case.h != case.hk}

    def run_ours() -> torch.Tensor:
        return rocflash.attention(*ours, causal=case.causal)

    def run_theirs() -> torch.Tensor:
        return F.scaled_dot_product_attention(*theirs, **told)

    gap = (run_ours().detach() - run_theirs().detach().transpose(1, 2)).abs().max().item()
    calls: list[Callable[[], object]] = [run_ours, run_theirs]
    if grad:
        outs = [run_ours(), run_theirs()]
        douts = [torch.randn_like(outs[0])]
        douts.append(douts[0].transpose(1, 2).contiguous())
        calls = [
            lambda n=n, x=x: torch.autograd.grad(outs[n], x, douts[n], retain_graph=True)
            for n, x in enumerate((ours, theirs))
        ]
    seconds = [min(best_seconds(call, budget / 2) for _ in range(2)) for call in calls]
    return {
        **asdict(case),
        "rocflash_ms": seconds[0] * 1e3,
        "torch_ms": seconds[1] * 1e3,
        "rocflash_gflops": case.flops() / seconds[0] / 1e9,
        "torch_gflops": case.flops() / seconds[1] / 1e9,
        "ratio": seconds[1] / seconds[0],
        "difference": gap,
    }


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def plot(rows: list[dict], path: str) -> None:
    """Ratios by length, one panel for each operation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    operations = ["forward", "backward", "decode"]
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5), sharey=True, constrained_layout=True)
    for axis, op in zip(axes, operations):
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in (r for r in rows if r["op"] == op and (op == "decode" or r["h"] == r["hk"])):
            heads = f" {row['h']}/{row['hk']} heads" if op == "decode" else ""
            name = f"{row['dtype']} d{row['d']}{heads}{' causal' if row['causal'] else ''}"
            lines.setdefault(name, []).append((row["sk"], row["ratio"]))
        for name, points in lines.items():
            style = "--" if "causal" in name or "8/2" in name else "-"
            axis.plot(*zip(*points), style, marker="o", markersize=3, label=name)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set(title=op, xlabel="keys", xscale="log", yscale="log")
        lengths = sorted({row["sk"] for row in rows})
        axis.set_xticks(lengths, map(str, lengths))
        axis.minorticks_off()
        if lines:
            axis.legend(fontsize=7)
    axes[0].set_ylabel("times faster than torch")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two lengths, short measurements")
    parser.add_argument("--ops", default="forward,backward,decode", help="which of these")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="which of these")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", default="build/bench/cpu_vs_torch.json")
    parser.add_argument("--plot", default="build/bench/cpu_vs_torch.png")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = rocflash.devices()[0]
    print(
        f"{device['name']}, {device['arch']}, {arguments.threads} threads, torch {torch.__version__}"
    )
    print(f"{'':44}{'rocflash ms':>12}{'torch ms':>11}{'GFLOP/s':>9}{'ratio':>8}{'differs':>9}")
    rows = []
    chosen = [arguments.ops.split(","), arguments.dtypes.split(",")]
    for case in cases(arguments.quick):
        if case.op not in chosen[0] or case.dtype not in chosen[1]:
            continue
        row = measure(case, 0.1 if arguments.quick else 0.6)
        rows.append(row)
        print(
            f"{case.label():44}{row['rocflash_ms']:12.2f}{row['torch_ms']:11.2f}"
            f"{row['rocflash_gflops']:9.0f}{row['ratio']:7.2f}x{row['difference']:9.0e}",
            flush=True,
        )
    for op in chosen[0]:
        mean = geometric_mean([r["ratio"] for r in rows if r["op"] == op])
        print(f"{op}: {mean:.2f}x torch (geometric mean)")
    report = {
        "device": device,
        "machine": platform.machine(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "rows": rows,
    }
    for path in (arguments.output, arguments.plot):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(arguments.output, "w") as file:
        json.dump(report, file, indent=1)
    plot(rows, arguments.plot)
    print(f"written: {arguments.output}, {arguments.plot}")


if __name__ == "__main__":
    main()
