"""rocflash against torch's attention on the CPU: same threads and inputs, interleaved.

    python benchmarks/cpu_vs_torch.py [--long] [--ops decode] [--dtypes f32,bf16] [--isa avx2]
                                 [--threads N]

Forward and backward in bf16, f16 and f32, 1024 and 4096 tokens, head dimensions 64 and 128, causal
and not; --long has 512 to 8192 tokens and grouped heads, --ops decode single queries over long
caches. A ratio above 1 means that this library is faster. The next column is the largest error of
the first head (of the output, or of the three gradients) against double precision, for both sides.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cpu_timing as measure

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
LENGTHS, LONG_LENGTHS = (1024, 4096), (512, 1024, 2048, 4096, 8192)
OPS = ("forward", "backward", "decode")


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
        """Useful work: 4 per query, key and column, half of it when causal, 2.5 times in
        backward.
        """
        once = 4.0 * self.batch * self.h * self.sq * self.sk * self.d
        return once * (0.5 if self.causal else 1.0) * (2.5 if self.op == "backward" else 1.0)

    def shape(self) -> str:
        heads = "" if self.h == self.hk else f" h{self.h}/{self.hk}"
        tokens = str(self.sk) if self.sq == self.sk else f"{self.sq}x{self.sk}"
        return f"{tokens} d{self.d}{heads}{' causal' if self.causal else ''}"

    def label(self) -> str:
        return f"{self.op} {self.dtype} {self.shape()}"


def cases(
    ops: list[str], dtypes: list[str], lengths: tuple[int, ...], long: bool
) -> Iterator[Case]:
    for op in (op for op in ops if op != "decode"):
        for dtype in dtypes:
            for length in lengths:
                for d in (64, 128):
                    for causal in (False, True):
                        yield Case(op, dtype, d, length, length, causal=causal)
            if long:
                yield Case(op, dtype, 128, lengths[-2], lengths[-2], 8, 2, True)
                yield Case(op, dtype, 64, lengths[-2], lengths[-2], 8, 1, True)
    for dtype in dtypes if "decode" in ops else ():
        for length in lengths:
            yield Case("decode", dtype, 128, 1, length, 8, 8, batch=4)
            yield Case("decode", dtype, 128, 1, length, 8, 2, batch=4)
        for length in (4096, 32768) if long else (4096,):
            yield Case("decode", dtype, 128, 1, length, 32, 8)


def goal_of(op: str, dtype: str, isa: str) -> float:
    """The goal of an operation: the geometric mean of its ratios; each ratio must be at least 1."""
    if op == "decode" or isa == "avx2":
        return 1.0
    if dtype != "f32" and not isa and measure.has_amx():
        return 3.0 if (op, dtype) == ("backward", "bf16") else 2.0
    return 1.2


def errors(case: Case, results: list[list[Any]], inputs: list[Any], dout: Any) -> list[float]:
    """The largest error of each side's results, of the first head of the first sequence."""
    import torch

    q, k, v = [x.detach()[0, :, 0].double().requires_grad_(dout is not None) for x in inputs]
    scores = q @ k.T * case.d**-0.5
    if case.causal:
        hidden = torch.ones(case.sq, case.sk, dtype=torch.bool).triu_(1 + case.sk - case.sq)
        scores = scores.masked_fill(hidden, -torch.inf)
    exact = [scores.softmax(-1) @ v]
    if dout is not None:
        # Key heads that several query heads share sum over all of those: q's gradient is the first
        # head's alone.
        wanted = [q, k, v] if case.h == case.hk else [q]
        exact = list(torch.autograd.grad(exact[0], wanted, dout[0, :, 0].double()))
    return [
        max((x[0, :, 0].double() - y).abs().max().item() for x, y in zip(side, exact))
        for side in results
    ]


def compare(case: Case) -> dict[str, Any]:
    """Both sides interleaved, each with its fastest layout."""
    import torch
    import torch.nn.functional as F

    import rocflash

    torch.manual_seed(0)
    dtype, grad = getattr(torch, DTYPES[case.dtype]), case.op == "backward"
    shapes = ((case.sq, case.h), (case.sk, case.hk), (case.sk, case.hk))
    ours = [torch.randn(case.batch, n, h, case.d).to(dtype).requires_grad_(grad) for n, h in shapes]
    theirs = [x.detach().transpose(1, 2).contiguous().requires_grad_(grad) for x in ours]
    given = {"is_causal": case.causal, "enable_gqa": case.h != case.hk}
    calls: list[Callable[[], Any]] = [
        lambda: rocflash.attention(*ours, causal=case.causal),
        lambda: F.scaled_dot_product_attention(*theirs, **given),
    ]
    dout = None
    if grad:
        outs = [call() for call in calls]
        dout = torch.randn_like(outs[0])
        douts = [dout, dout.transpose(1, 2).contiguous()]
        calls = [
            lambda n=n, x=x: torch.autograd.grad(outs[n], x, douts[n], retain_graph=True)
            for n, x in enumerate((ours, theirs))
        ]
    results = [call() if grad else [call()] for call in calls]
    results[1] = [x.transpose(1, 2) for x in results[1]]
    error = errors(case, results, ours, dout)
    del results
    seconds = measure.interleaved(calls)
    sides = {}
    for side, took, wrong in zip(("rocflash", "torch"), seconds, error):
        sides |= {f"{side}_ms": took * 1e3, f"{side}_gflops": case.flops() / took / 1e9}
        sides[f"{side}_error"] = wrong
    return {**asdict(case), "shape": case.shape(), **sides, "ratio": seconds[1] / seconds[0]}


def print_header() -> None:
    print(f"{'':40}{'rocflash':>18}{'torch':>19}{'times':>8}{'error of':>10}{'error of':>9}")
    print(
        f"{'':40}{'ms':>9}{'GFLOP/s':>9}{'ms':>10}{'GFLOP/s':>9}{'faster':>8}{'rocflash':>10}{'torch':>9}"
    )


def print_row(case: Case, row: dict[str, Any]) -> None:
    ours, theirs = (
        f"{row[f'{s}_ms']:9.2f}{row[f'{s}_gflops']:9.0f}" for s in ("rocflash", "torch")
    )
    wrong = f"{row['rocflash_error']:10.1e}{row['torch_error']:9.1e}"
    print(f"{case.label():40}{ours} {theirs}{row['ratio']:7.2f}x{wrong}", flush=True)


def summarize(rows: list[dict[str, Any]], isa: str) -> list[dict[str, Any]]:
    """The table of the goals: mean and least ratio of each operation and dtype."""
    summary = []
    for op, dtype in dict.fromkeys((row["op"], row["dtype"]) for row in rows):
        ratios = [row["ratio"] for row in rows if (row["op"], row["dtype"]) == (op, dtype)]
        mean, least, goal = measure.geometric_mean(ratios), min(ratios), goal_of(op, dtype, isa)
        good = mean >= goal and least >= 1
        summary.append(
            {"op": op, "dtype": dtype, "mean": mean, "least": least, "goal": goal, "reached": good}
        )
    return summary


def cpu_fma_peak(threads: int, isa: str) -> float:
    """GFLOP/s of f32 multiply-adds alone, or 0 if the program that measures them has not been
    built.
    """
    program = Path(__file__).parent.parent / "build/bin/cpu_fma_peak"
    if not program.exists():
        return 0.0
    done = subprocess.run([program, str(threads), isa], capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else 0.0


def print_share(rows: list[dict[str, Any]], limit: float) -> None:
    """How close f32 comes to the limit where it should come closest."""
    shape = Case("forward", "f32", 128, 4096, 4096).shape()
    for row in rows:
        if limit and (row["op"], row["dtype"], row["shape"]) == ("forward", "f32", shape):
            share = row["rocflash_gflops"] / limit
            words = f"{share:.0%} of the {limit:.0f} GFLOP/s of multiply-adds alone"
            print(f"forward f32 {shape}: {words}, goal 75%  {measure.reached(share >= 0.75)}")


def print_summary(summary: list[dict[str, Any]]) -> None:
    print(
        f"\n{'times faster than torch':24}{'geometric mean':>16}{'goal':>8}{'least':>9}{'goal':>8}"
    )
    for s in summary:
        means = f"{s['mean']:15.2f}x{s['goal']:8.1f}{s['least']:8.2f}x{1.0:8.1f}"
        print(f"{s['op']:15}{s['dtype']:9}{means}  {measure.reached(s['reached'])}")


def plot(rows: list[dict[str, Any]], isa: str, title: str, path: str) -> None:
    """Ratios as bars, one panel for each operation, with the goals of the means as dashed lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ops = list(dict.fromkeys(row["op"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    figure, panels = plt.subplots(
        len(ops), 1, figsize=(12, 4 * len(ops)), squeeze=False, constrained_layout=True
    )
    for axis, op in zip(panels[:, 0], ops):
        shapes = list(dict.fromkeys(row["shape"] for row in rows if row["op"] == op))
        for n, dtype in enumerate(dtypes):
            ratio = {
                row["shape"]: row["ratio"]
                for row in rows
                if (row["op"], row["dtype"]) == (op, dtype)
            }
            thick = 0.8 / len(dtypes)
            at = [m + (n - (len(dtypes) - 1) / 2) * thick for m in range(len(shapes))]
            bars = axis.bar(
                at, [ratio.get(s, 0) for s in shapes], thick, label=dtype, color=f"C{n}"
            )
            axis.bar_label(bars, fmt="%.2f", fontsize=6)
            axis.axhline(goal_of(op, dtype, isa), color=f"C{n}", linestyle="--", linewidth=0.8)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xticks(range(len(shapes)), shapes, rotation=20, ha="right", fontsize=8)
        axis.set(title=f"{op}: {title}", ylabel="times faster than torch")
        axis.legend(fontsize=8)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="512 to 8192 tokens, and grouped heads")
    parser.add_argument("--lengths", help="these numbers of tokens instead, separated by commas")
    parser.add_argument("--ops", default="forward,backward", help=f"some of {','.join(OPS)}")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="some of these")
    parser.add_argument("--isa", choices=measure.FORCED, default="", help="hold both sides to it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", default="build/benchmarks/cpu_vs_torch.json")
    parser.add_argument("--plot", default="build/benchmarks/cpu_vs_torch.png")
    given = parser.parse_args()
    lengths = LONG_LENGTHS if given.long else LENGTHS
    if given.lengths:
        lengths = tuple(map(int, given.lengths.split(",")))
    ops = measure.some_of(parser, "--ops", given.ops, OPS)
    dtypes = measure.some_of(parser, "--dtypes", given.dtypes, DTYPES)

    note = measure.prepare(given.isa)
    torch = measure.import_torch()
    import rocflash

    torch.set_num_threads(given.threads)
    device = rocflash.devices()[0]
    title = (
        f"{device['name']}, {device['arch']}, {given.threads} threads, torch {torch.__version__}"
    )
    print(title + (f"; {note}" if note else ""))
    print_header()
    rows = []
    for case in cases(ops, dtypes, lengths, given.long):
        rows.append(compare(case))
        print_row(case, rows[-1])
    summary = summarize(rows, given.isa)
    print_summary(summary)
    limit = cpu_fma_peak(given.threads, given.isa)
    print_share(rows, limit)
    measure.write_json(
        given.output,
        {
            "device": device,
            "machine": platform.machine(),
            "threads": given.threads,
            "torch": torch.__version__,
            "note": note,
            "fma_limit_gflops": limit,
            "rows": rows,
            "summary": summary,
        },
    )
    plot(rows, given.isa, title, given.plot)
    print(f"written: {given.output}, {given.plot}")


if __name__ == "__main__":
    main()
