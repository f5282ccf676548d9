"""CPU benchmarks besides cpu_vs_torch.py, each compared with its goal.

    python benchmarks/cpu_features.py [--sections short,options] [--dtypes f32,bf16] [--threads N]
                                 [--output options.json]

short: sequences of 1 to 256 tokens and single queries, against torch. options: ALiBi, softcap,
bias, masks, dropout, sinks and GQA, against the case without options. window: cost per visible
score, against full attention. varlen: utilization of two threads with sequences of very different
lengths. growth: time and memory up to 64k tokens. isa: against torch with both limited to AVX2 or
AVX-512.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import c_abi
import cpu_timing as measure

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
OPS = ("forward", "backward")
Call = Callable[[], Any]


@dataclass
class Result:
    section: str
    what: str
    value: float
    goal: float
    at_least: bool  # else: at most
    times_ms: dict[str, float] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


class Section:
    """Prints a table line by line, and records its values."""

    def __init__(self, name: str, title: str, columns: list[str], goal: str) -> None:
        self.name, self.columns, self.results = name, columns, []
        print(f"\n{name}: {title}; goal: {goal}")
        print(f"{'':40}" + "".join(f"{c:>13}" for c in columns))

    def add(self, what: str, times: list[float], value: float, goal: float, at_least: bool) -> None:
        shown = dict(zip(self.columns, (t * 1e3 for t in times)))
        result = Result(self.name, what, value, goal, at_least, shown)
        self.results.append(result)
        cells = "".join(f"{t:13.3f}" for t in shown.values())
        print(f"{what:40}{cells}{value:12.2f}x  {measure.reached(result.reached)}", flush=True)


class Inputs:
    """Random q, k, v of one shape in (batch, tokens, heads, size), and calls on them."""

    def __init__(
        self, dtype: str, sq: int, sk: int = 0, h: int = 8, hk: int = 8, d: int = 64, batch: int = 1
    ) -> None:
        import torch

        torch.manual_seed(0)
        kind, sk = getattr(torch, DTYPES[dtype]), sk or sq
        self.tensors = [
            torch.randn(batch, n, heads, d).to(kind) for n, heads in ((sq, h), (sk, hk), (sk, hk))
        ]
        self.grouped = h != hk

    def ours(self, op: str, packed: bool = False, **options: Any) -> Call:
        import rocflash

        tensors = [x[0] for x in self.tensors] if packed else self.tensors
        return _call(op, tensors, lambda *x: rocflash.attention(*x, **options))

    def theirs(self, op: str) -> Call:
        import torch.nn.functional as F

        moved = [x.transpose(1, 2).contiguous() for x in self.tensors]
        attend = F.scaled_dot_product_attention
        return _call(op, moved, lambda *x: attend(*x, enable_gqa=self.grouped))

    def library(self, op: str) -> tuple[Call, int]:
        """The call of the C ABI, and the bytes of its workspace."""
        import torch

        torch.manual_seed(1)
        q, k, v = self.tensors
        out, lse = torch.randn_like(q), torch.zeros(q.shape[0], q.shape[2], q.shape[1])
        tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        if op == "backward":
            tensors |= {"dout": torch.randn_like(out)}
            tensors |= {f"d{name}": torch.empty_like(tensors[name]) for name in ("q", "k", "v")}
        return c_abi.prepare(op, tensors)


def _call(op: str, inputs: list[Any], attend: Callable[..., Any]) -> Call:
    import torch

    if op == "forward":
        return lambda: attend(*inputs)
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = attend(*inputs)
    dout = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def timed(calls: list[Call], **limits: Any) -> list[float]:
    for call in calls:
        call()
    return measure.interleaved(calls, **limits)


def short(dtypes: list[str]) -> list[Result]:
    columns = ["rocflash ms", "torch ms", "C ABI ms", "faster"]
    table = Section(
        "short",
        "b 1, h 8, d 64, calls from Python; the C ABI for comparison",
        columns,
        "1.0 of torch",
    )
    shapes = [(n, n, 8, 8) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    shapes += [(1, n, 8, 8) for n in (16, 128, 1024, 8192)] + [(1, n, 32, 8) for n in (128, 4096)]
    for op in OPS:
        for dtype in dtypes:
            for sq, sk, h, hk in shapes:
                if op == "backward" and sq != sk:
                    continue
                inputs = Inputs(dtype, sq, sk, h, hk)
                sides = [inputs.ours(op), inputs.theirs(op), inputs.library(op)[0]]
                times = timed(sides, rounds=3, seconds=0.15)
                heads = "" if h == hk else f" h{h}/{hk}"
                what = f"{op} {dtype} {sq}x{sk}{heads}"
                table.add(what, times, times[1] / times[0], 1.0, True)
    return table.results


def options(dtypes: list[str]) -> list[Result]:
    import torch

    tokens = 1024
    columns = ["with ms", "without ms", "slower"]
    table = Section(
        "options", f"b 1, h 8, {tokens} tokens", columns, "at most 1.5 times the case without"
    )
    rows = torch.arange(tokens)
    variants: dict[str, dict[str, Any]] = {
        "alibi": {"alibi_slopes": 2.0 ** -torch.arange(1, 9, dtype=torch.float32)},
        "softcap": {"softcap": 20.0},
        "bias": {"bias": torch.randn(1, 8, tokens, tokens)},
        "bias shared": {"bias": torch.randn(1, 1, tokens, tokens)},
        "mask": {"mask": (rows[:, None] - rows[None]).abs()[None, None] % 7 != 3},
        "sinks": {"sinks": torch.randn(8)},
        "dropout": {"dropout_p": 0.1, "rng_state": torch.tensor([1, 2])},
        "window": {"window": (256, 256)},
        "causal": {"causal": True},
    }
    for op in OPS:
        for dtype in dtypes:
            for d in (64, 128):
                inputs = Inputs(dtype, tokens, d=d)
                calls = {"": inputs.ours(op)}
                for name, given in variants.items():
                    typed = {
                        key: x.to(inputs.tensors[0].dtype) if key == "bias" else x
                        for key, x in given.items()
                    }
                    calls[name] = inputs.ours(op, **typed)
                for hk in (2, 1):
                    calls[f"h8/{hk}"] = Inputs(dtype, tokens, hk=hk, d=d).ours(op)
                without, *times = timed(list(calls.values()))
                for name, took in zip(list(calls)[1:], times):
                    what = f"{op} {dtype} d{d} {name}"
                    table.add(what, [took, without], took / without, 1.5, False)
    return table.results


def window(dtypes: list[str]) -> list[Result]:
    columns = ["window ms", "other ms", "cost"]
    left = 512
    title = f"b 1, h 2, d 64, window of {left} keys to the left; cost per visible score"
    table = Section(
        "window",
        title,
        columns,
        "at most 1.5 times that of whole 4k, and of a window at half the length",
    )
    for op in OPS:
        for dtype in dtypes:
            visible = {n: left * n for n in (8192, 16384)}
            whole = Inputs(dtype, 4096, h=2, hk=2).ours(op)
            half, full = (Inputs(dtype, n, h=2, hk=2).ours(op, window=(left, 0)) for n in visible)
            times = timed([full, whole, half])
            cost = times[0] / visible[16384] / (times[1] / 4096**2)
            table.add(f"{op} {dtype} 16k window / 4k whole", times[:2], cost, 1.5, False)
            growth = times[0] / times[2] / 2
            table.add(f"{op} {dtype} 16k / 8k window", [times[0], times[2]], growth, 1.5, False)
    return table.results


def varlen(dtypes: list[str]) -> list[Result]:
    import torch

    columns = ["1 thread ms", "2 threads ms", "busy"]
    title = (
        "varlen sequences, d 64; share of two threads' time that is work, 1.0 being one thread's "
        "time halved"
    )
    table = Section("varlen", title, columns, "at least 0.85")
    packs = {
        "equal 512 x 8": [512] * 8,
        "one of 3072 last": [64] * 16 + [3072],
        "one of 3072 first": [3072] + [64] * 16,
        "halves": [2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1],
    }
    for op in OPS:
        for dtype in dtypes:
            for h in (8, 1):
                for name, lengths in packs.items():
                    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
                    inputs = Inputs(dtype, sum(lengths), h=h, hk=h)
                    given = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "causal": True}
                    sides = [inputs.ours(op, True, **given, num_threads=n) for n in (1, 2)]
                    times = timed(sides, rounds=3, seconds=0.3)
                    what = f"{op} {dtype} h{h} {name}"
                    table.add(what, times, times[0] / times[1] / 2, 0.85, True)
    return table.results


def resident(name: str) -> int:
    """Bytes of this process's memory, now (VmRSS) or at most since the last reset (VmHWM)."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


def growth(dtypes: list[str]) -> list[Result]:
    columns = ["ms", "workspace MB", "peak RSS MB", "time / S²"]
    title = (
        "b 1, h 1, d 64; time over that of a quarter the length, divided by 16, and workspace "
        "likewise by 4"
    )
    table = Section("growth", title, columns, "both at most 1.2")
    for op in OPS:
        for dtype in dtypes[:1]:
            last: tuple[float, float] | None = None
            for tokens in (1024, 4096, 16384, 65536):
                inputs = Inputs(dtype, tokens, h=1, hk=1)
                call, needed = inputs.library(op)
                Path("/proc/self/clear_refs").write_text("5")
                before = resident("VmRSS")
                (took,) = timed([call], rounds=3, seconds=0.2)
                rss = resident("VmHWM") - before
                shown = [took, needed / 1e9, rss / 1e9]  # columns show them times 1000
                what = f"{op} {dtype} {tokens}"
                if last:
                    table.add(what, shown, took / last[0] / 16, 1.2, False)
                    table.add(f"{what} (workspace)", [], needed / last[1] / 4, 1.2, False)
                else:
                    table.add(what, shown, 1.0, 1.2, False)
                last = (took, needed)
    return table.results


def isa(dtypes: list[str]) -> list[Result]:
    import torch

    results = []
    for name, flag in (("avx2", "avx2"), ("avx512", "avx512bw")):
        if flag not in measure.cpu_flags():
            print(f"\nisa: this machine has no {name}")
            continue
        print(f"\nisa: against torch, both sides limited to {name}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory, "table.json")
            command = [
                sys.executable,
                str(Path(__file__).with_name("cpu_vs_torch.py")),
                "--isa",
                name,
            ]
            command += ["--lengths", "1024", "--threads", str(torch.get_num_threads())]
            command += ["--dtypes", ",".join(dtypes), "--output", str(report)]
            subprocess.run([*command, "--plot", str(Path(directory, "table.png"))], check=True)
            for s in json.loads(report.read_text())["summary"]:
                what = f"{name} {s['op']} {s['dtype']}"
                results.append(Result("isa", f"{what}, mean", s["mean"], s["goal"], True))
                results.append(Result("isa", f"{what}, least", s["least"], 1.0, True))
    return results


SECTIONS: dict[str, Callable[[list[str]], list[Result]]] = {
    "short": short,
    "options": options,
    "window": window,
    "varlen": varlen,
    "growth": growth,
    "isa": isa,
}


def main() -> None:
    parser = measure.sections_parser(__doc__, SECTIONS, DTYPES, "build/bench/cpu_features.json")
    given = measure.parse_sections(parser, SECTIONS, DTYPES)
    sections, dtypes = given.sections, given.dtypes

    note = measure.prepare()
    torch = measure.import_torch()
    import rocflash

    torch.set_num_threads(given.threads)
    device = rocflash.devices()[0]
    print(
        f"{device['name']}, {device['arch']}, {given.threads} threads, torch {torch.__version__}. "
        f"{note}"
    )
    results = [result for name in sections for result in SECTIONS[name](dtypes)]
    print(f"\n{'':20}{'reached':>9}{'of':>5}   worst")
    for name in sections:
        mine = [r for r in results if r.section == name]
        if not mine:
            continue
        worst = min(mine, key=lambda r: r.value / r.goal if r.at_least else r.goal / r.value)
        good = sum(r.reached for r in mine)
        print(
            f"{name:20}{good:9}{len(mine):5}   {worst.what}: {worst.value:.2f}, goal {worst.goal}"
        )
    rows = [{**asdict(r), "reached": r.reached} for r in results]
    report = {"device": device, "threads": given.threads, "torch": torch.__version__, "rows": rows}
    measure.write_json(given.output, report)
    print(f"written: {given.output}")


if __name__ == "__main__":
    main()
