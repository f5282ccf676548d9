"""This library against FA3, FA4, AITER and torch's attention on a GPU, interleaved in one run.

    python benchmarks/gpu_vs_torch.py [--device auto] [--op backward] [--packed] [--dtypes bf16]
        [--dims 64,128] [--lengths 512,2048] [--peers FA3,FA4,cuDNN,FA2,AITER] [--idle 0.02]
        [--output bench.json]

Peers: FA3 is the package fa3-fwd (forward only), FA4 is flash-attn-4, AITER is AMD's package;
cuDNN, FA2 and efficient are torch's backends. One that is not installed, or does not support a
case, is skipped with the reason. Ratios above 1 say that this library is faster. --packed:
sequences of mixed lengths in one tensor.

The sides alternate; events around each call time it, the median counts. Backward goes through
torch.autograd.grad, so preprocess and postprocess kernels are included. The largest difference of
our output, or of our worst gradient, from the first peer's is printed next to it.

A large card is slower once it is hot: its power is limited. Without --idle calls follow each other
without a pause (sustained); with it each is made a few times after that many seconds of rest
(burst), and the device first waits for milliseconds so that the host has queued them all.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from gpu_peers import PEERS, Peer, Varlen, defaults, find, ours

from rocflash.self_test import add_device_option, chosen_device

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
HEADS = ((16, 16), (32, 8))
TOKENS = 16384  # in a batch
WORK = {"forward": 1.0, "backward": 2.5}  # two matrix products, and five
BURST = 4  # calls after a rest; the first one warms up
# Clocks for which the device waits, so that a burst is queued before it starts: two milliseconds on
# NVIDIA, and more where they are those of a slower counter.
LEAD = 4_000_000


@dataclass
class Case:
    dtype: str
    d: int
    length: int
    h: int
    hk: int
    causal: bool
    packed: bool = False

    @property
    def lengths(self) -> list[int]:
        """Of the sequences. Packed: the longest, and as many tokens again in shorter ones."""
        batch = max(1, TOKENS // self.length)
        if not self.packed:
            return [self.length] * batch
        parts = [max(1, self.length // n) for n in (1, 2, 4, 8, 8)]
        return parts * max(1, batch // 2)

    def flop(self, operation: str) -> float:
        """Useful work: 4 per query, key and column, half of it when causal; 10 backward."""
        once = WORK[operation] * 4.0 * self.h * self.d * sum(n**2 for n in self.lengths)
        return once * (0.5 if self.causal else 1.0)

    def label(self) -> str:
        size = f"{len(self.lengths)}{'<=' if self.packed else 'x'}{self.length}"
        mask = "causal" if self.causal else ""
        return f"{self.dtype} d{self.d} {size} h{self.h}/{self.hk} {mask}"


@dataclass
class Row:
    case: Case
    ms: dict[str, float]
    difference: float
    skipped: dict[str, str] = field(default_factory=dict)

    def ratio(self, peer: str) -> float:
        return self.ms[peer] / self.ms["rocflash"]

    def tflops(self, name: str, operation: str) -> float:
        return self.case.flop(operation) / self.ms[name] / 1e9


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for dtype in arguments.dtypes:
        for d in arguments.dims:
            for causal in (False, True):
                for length in arguments.lengths:
                    # torch's memory-efficient attention, the peer in f32, knows no grouped heads.
                    heads = HEADS[:1] if dtype == "f32" or arguments.packed else HEADS
                    for h, hk in heads:
                        yield Case(dtype, d, length, h, hk, causal, arguments.packed)


def medians(
    calls: dict[str, Callable[[], object]], budget_ms: float, idle: float
) -> dict[str, float]:
    """Milliseconds of each call. They alternate, so that heat and clocks are the same for all."""
    times: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}

    def one_round() -> None:
        for name, call in calls.items():
            if idle > 0:
                torch.cuda.synchronize()
                time.sleep(idle)
                torch.cuda._sleep(LEAD)
            for n in range(BURST if idle > 0 else 1):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                if n > 0 or idle == 0:
                    times[name].append((begin, end))

    # The first rounds compile, allocate and warm up; the last of them shows how long a round takes.
    for _ in range(3):
        one_round()
    torch.cuda.synchronize()
    once = sum(pairs[-1][0].elapsed_time(pairs[-1][1]) for pairs in times.values())
    for pairs in times.values():
        pairs.clear()
    for _ in range(3 if idle > 0 else max(5, min(50, int(budget_ms / once)))):
        one_round()
    torch.cuda.synchronize()
    return {
        name: sorted(a.elapsed_time(b) for a, b in pairs)[len(pairs) // 2]
        for name, pairs in times.items()
    }


Call = Callable[[], tuple[torch.Tensor, ...]]


def differentiated(forward: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> Call:
    """A call that computes the gradients of what a forward call returned once."""
    out = forward()
    torch.manual_seed(1)
    dout = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def measure(case: Case, peers: list[Peer], arguments: argparse.Namespace) -> Row:
    torch.manual_seed(0)
    dtype, backward = DTYPES[case.dtype], arguments.op == "backward"
    shape = [sum(case.lengths)] if case.packed else [len(case.lengths), case.length]
    inputs = [
        torch.randn(*shape, heads, case.d, device="cuda").to(dtype).requires_grad_(backward)
        for heads in (case.h, case.hk, case.hk)
    ]
    q, k, v = inputs
    starts = torch.tensor([0, *case.lengths], device="cuda").cumsum(0).int()
    varlen = Varlen(case.lengths, starts) if case.packed else None

    def timed(peer: Peer) -> Call:
        def forward() -> torch.Tensor:
            return peer.forward(q, k, v, case.causal, varlen)

        return differentiated(forward, inputs) if backward else lambda: (forward(),)

    calls = {"rocflash": timed(ours(arguments.deterministic))}
    difference, skipped = math.nan, {}
    for peer in peers:
        problem = peer.problem(arguments.op, case.dtype)
        if problem is None:
            try:
                call = timed(peer)
                theirs = call()
            except Exception as error:  # each peer has its own way to say what it cannot do
                problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            skipped[peer.name] = problem
            continue
        if math.isnan(difference):
            pairs = zip(calls["rocflash"](), theirs, strict=True)
            difference = max((x - y).abs().max().item() for x, y in pairs)
        calls[peer.name] = call
    budget_ms = 100 if arguments.quick else 400
    return Row(case, medians(calls, budget_ms, arguments.idle), difference, skipped)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(rows: list[Row], names: list[str]) -> Iterator[str]:
    for d in sorted({row.case.d for row in rows}):
        for name in names:
            ratios = [r.ratio(name) for r in rows if r.case.d == d and name in r.ms]
            if ratios:
                yield (
                    f"d {d} against {name}: {geometric_mean(ratios):.3f}x (geometric mean of"
                    f" {len(ratios)}), least {min(ratios):.3f}x"
                )
        best = [
            min(r.ratio(n) for n in r.ms if n != "rocflash")
            for r in rows
            if r.case.d == d and len(r.ms) > 1
        ]
        if best:
            below = sum(x < 1 for x in best)
            yield (
                f"d {d} against the best peer of each row: {geometric_mean(best):.3f}x, least"
                f" {min(best):.3f}x; slower in {below} of {len(best)}"
            )


def result(rows: list[Row], peers: list[Peer], arguments: argparse.Namespace) -> dict[str, Any]:
    """A set as benchmarks/results keeps them, with what was skipped and why."""
    versions = dict(peer.version.rsplit(" ", 1) for peer in [ours(False), *peers])
    rest = f"after {1000 * arguments.idle:.0f} ms of rest" if arguments.idle else "without a pause"
    shown = []
    for row in rows:
        c = row.case
        shown.append(
            {"dtype": c.dtype, "d": c.d, "tokens": c.length, "heads": f"{c.h}/{c.hk}"}
            | {"causal": c.causal, "difference": row.difference}
            | {name: round(row.tflops(name, arguments.op), 1) for name in row.ms}
            | ({"skipped": row.skipped} if row.skipped else {})
        )
    return {
        "device": torch.cuda.get_device_name(),
        "id": arguments.op + ("-varlen" if arguments.packed else ""),
        "basis": "measured",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": versions,
        "unit": "TFLOP/s",
        "better": "higher",
        "command": shlex.join(["python", *sys.argv]),
        "method": f"Interleaved in one process, {rest}; medians by events.",
        "of": ["rocflash", *(peer.name for peer in peers)],
        "rows": shown,
    }


def plot(rows: list[Row], names: list[str], operation: str, path: str) -> None:
    """One panel per dtype, head dimension, heads and mask: TFLOP/s over lengths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        c = row.case
        panels.setdefault((c.dtype, c.d, c.h, c.hk, c.causal), []).append(row)
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3.6 * columns, 2.8 * lines), squeeze=False, sharey=True
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((dtype, d, h, hk, causal), shown) in zip(axes.flat, panels.items(), strict=False):
        for name in ("rocflash", *names):
            points = [(r.case.length, r.tflops(name, operation)) for r in shown if name in r.ms]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set_title(f"{dtype} d{d} h{h}/{hk}{' causal' if causal else ''}", fontsize=9)
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    highest = max(r.tflops(n, operation) for r in rows for n in r.ms)
    axes.flat[0].set_ylim(0, 1.05 * highest)  # shared by all
    axes.flat[0].legend(fontsize=8)
    figure.suptitle(f"{torch.cuda.get_device_name()}, {operation}: TFLOP/s over sequence length")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def listed(convert: Callable[[str], Any], allowed: list[str] | None = None) -> Callable[[str], Any]:
    def parse(text: str) -> list[Any]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if allowed is not None and name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r}; must be of {', '.join(allowed)}")
            if allowed is None and not (name.isdigit() and int(name) > 0):
                raise argparse.ArgumentTypeError(f"{name!r}; must be positive integers")
        if not names:
            raise argparse.ArgumentTypeError("empty; must name at least one")
        return [convert(name) for name in names]

    return parse


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_device_option(parser)
    parser.add_argument("--op", choices=WORK, default="forward")
    parser.add_argument("--deterministic", action="store_true", help="ordered dQ accumulation")
    parser.add_argument("--packed", action="store_true", help="sequences of mixed lengths (varlen)")
    parser.add_argument("--quick", action="store_true", help="two lengths, short measurements")
    parser.add_argument("--dtypes", type=listed(str, list(DTYPES)), default=["bf16"])
    parser.add_argument("--dims", type=listed(int), default=[64, 128], help="head dimensions")
    parser.add_argument("--lengths", type=listed(int), help="tokens of a sequence")
    parser.add_argument("--peers", type=listed(str, list(PEERS)), help="default: all for the dtype")
    parser.add_argument("--idle", type=float, default=0, help="seconds of rest before each burst")
    parser.add_argument("--output", default="build/benchmarks/gpu_vs_torch.json")
    parser.add_argument("--plot", help="a PNG with TFLOP/s over lengths; needs matplotlib")
    return parser


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    arguments = parser_of().parse_args(argv)
    if arguments.lengths is None:
        arguments.lengths = (
            [2048, 8192] if arguments.quick else [512, 1024, 2048, 4096, 8192, 16384]
        )
    if arguments.peers is None:
        arguments.peers = defaults(set(arguments.dtypes))
    return arguments


def main() -> None:
    arguments = parse()
    parser = parser_of()
    device = chosen_device(parser, arguments)
    if not device.startswith("cuda"):
        parser.error(
            f"device is {device!r}; this benchmark times a GPU: hip:N (or rocm:N) or cuda:N"
        )
    torch.cuda.set_device(torch.device(device).index or 0)
    peers, skipped = find(arguments.peers, arguments.op)
    names = [peer.name for peer in peers]
    print(
        f"{torch.cuda.get_device_name()}, {arguments.op}: TFLOP/s, and our speed relative to each"
    )
    for peer in peers:
        print(f"  {peer.name}: {peer.version}")
    for name, why in skipped.items():
        print(f"  {name} skipped: {why}")
    print(f"{'':34}{'rocflash':>9}" + "".join(f"{name:>14}" for name in names) + f"{'differs':>9}")
    rows: list[Row] = []
    reported: set[tuple[str, str]] = set()
    for case in cases(arguments):
        row = measure(case, peers, arguments)
        rows.append(row)
        theirs = "".join(
            f"{row.tflops(n, arguments.op):7.0f}{row.ratio(n):6.2f}x"
            if n in row.ms
            else f"{'-':>14}"
            for n in names
        )
        speed = row.tflops("rocflash", arguments.op)
        print(f"{case.label():34}{speed:9.0f}{theirs}{row.difference:9.0e}", flush=True)
        for item in row.skipped.items():
            if item not in reported:
                reported.add(item)
                print(f"  {item[0]} skipped: {item[1].splitlines()[0][:200]}")
    for line in summary(rows, names):
        print(line)
    os.makedirs(os.path.dirname(arguments.output) or ".", exist_ok=True)
    with open(arguments.output, "w") as file:
        json.dump({**result(rows, peers, arguments), "not_found": skipped}, file, indent=1)
    print(f"written: {arguments.output}")
    if arguments.plot:
        plot(rows, names, arguments.op, arguments.plot)
        print(f"written: {arguments.plot}")


if __name__ == "__main__":
    main()
