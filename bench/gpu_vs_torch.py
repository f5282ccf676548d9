"""This library against torch's attention on an NVIDIA GPU: one run, the same inputs, the device's own clock.

    python bench/gpu_vs_torch.py [--op backward] [--packed] [--quick] [--dtypes bf16] [--dims 64,128]
                                 [--idle 0.2] [--output bench.json] [--plot bench.png]

Forward or backward, head sizes 64 and 128, 2048 to 16384 tokens, causal and not, ordinary and grouped heads, against
torch's flash and cuDNN backends; in f32, which those two do not take, against its memory-efficient one, which knows no
groups. --packed: sequences of mixed lengths in one tensor, for torch as a nested one. Ratios above 1 say that this library is faster. All take turns and are timed with
events around each call; the median counts. How far our output, or the worst of our gradients, is from torch's is
printed beside it. Kernels are compared, not what a call costs the host.

A large card runs slower once it is hot: its power is limited. Without --idle the calls follow each other without a
pause (sustained); with it each is made a few times after so many seconds of rest (burst). The device then waits for two
milliseconds until the host has made them: after a rest a short call takes the host longer than the device.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import rocflash

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
TOKENS = 16384  # in a batch
PRODUCTS = {"forward": 1.0, "backward": 2.5}  # two matrix products, and five


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
    def batch(self) -> int:
        return max(1, TOKENS // self.length)

    @property
    def lengths(self) -> list[int]:
        """Of the sequences. Packed ones are the longest, and as many tokens again in shorter ones."""
        if not self.packed:
            return [self.length] * self.batch
        parts = [self.length // n for n in (1, 2, 4, 8, 8)]
        return parts * max(1, self.batch // 2)

    def flops(self, op: str) -> float:
        """Useful work: 4 per query, key and column, half of it when causal; 10 backward."""
        once = PRODUCTS[op] * 4.0 * self.h * self.d * sum(n**2 for n in self.lengths)
        return once * (0.5 if self.causal else 1.0)

    @property
    def backends(self) -> list[str]:
        return ["efficient"] if self.dtype == "f32" else ["flash", "cudnn"]

    def label(self) -> str:
        mask = "causal" if self.causal else ""
        size = f"{len(self.lengths)}<={self.length}" if self.packed else f"{self.batch}x{self.length}"
        return f"{self.dtype} d{self.d} {size} h{self.h}/{self.hk} {mask}"


def cases(quick: bool, dtypes: list[str], dims: list[int], packed: bool) -> Iterator[Case]:
    for dtype in dtypes:
        for d in dims:
            for causal in (False, True):
                for length in (2048, 8192) if quick else (2048, 4096, 8192, 16384):
                    alone = packed or dtype == "f32"  # torch knows no groups there
                    for h, hk in ((16, 16),) if alone else ((16, 16), (32, 8)):
                        yield Case(dtype, d, length, h, hk, causal, packed)


BURST = 4  # calls after a rest; the first one warms up
LEAD = 4_000_000  # clocks for which the device waits, so that a burst is there before its first kernel begins


def medians(
    calls: dict[str, Callable[[], object]], budget_ms: float, idle: float
) -> dict[str, float]:
    """Milliseconds of each call. They take turns, so that heat and clocks are the same for all."""
    times: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}

    def turn() -> None:
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

    # Compiles, allocates, warms up; the last turn tells how long one takes. Then the calls follow each other
    # without a pause, so that what a call costs the host before its kernel begins hides behind the kernel before.
    for _ in range(3):
        turn()
    torch.cuda.synchronize()
    once = sum(pairs[-1][0].elapsed_time(pairs[-1][1]) for pairs in times.values())
    for pairs in times.values():
        pairs.clear()
    for _ in range(3 if idle > 0 else max(5, min(50, int(budget_ms / once)))):
        turn()
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


def measure(
    case: Case, op: str, budget_ms: float, deterministic: bool, idle: float
) -> dict[str, object]:
    torch.manual_seed(0)
    dtype, backward = DTYPES[case.dtype], op == "backward"
    rows = [sum(case.lengths)] if case.packed else [case.batch, case.length]
    q, k, v = inputs = [
        torch.randn(*rows, heads, case.d, device="cuda").to(dtype).requires_grad_(backward)
        for heads in (case.h, case.hk, case.hk)
    ]
    told = {"is_causal": case.causal, "enable_gqa": case.h != case.hk}
    starts = torch.tensor([0, *case.lengths], device="cuda").cumsum(0)
    cu = starts.int()
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": case.length, "max_seqlen_k": case.length}

    def run_ours() -> torch.Tensor:
        lengths = packed if case.packed else {}
        return rocflash.attention(q, k, v, causal=case.causal, deterministic=deterministic, **lengths)

    def run_torch(backend: SDPBackend) -> torch.Tensor:
        given = inputs
        if case.packed:
            longest = {"min_seqlen": min(case.lengths), "max_seqlen": case.length}
            given = [torch.nested.nested_tensor_from_jagged(x, starts, **longest) for x in inputs]
        with sdpa_kernel(backend):
            turned = [x.transpose(1, 2) for x in given]
            out = F.scaled_dot_product_attention(*turned, **told).transpose(1, 2)
        return out.values() if case.packed else out

    def timed(forward: Callable[[], torch.Tensor]) -> Call:
        return differentiated(forward, inputs) if backward else lambda: (forward(),)

    calls = {"rocflash": timed(run_ours)}
    gap, refused = math.nan, {}
    for name in case.backends:
        try:
            call = timed(lambda backend=BACKENDS[name]: run_torch(backend))
            theirs = call()
        except RuntimeError as error:  # torch says which of its conditions is not met
            refused[name] = str(error)
            continue
        if math.isnan(gap):
            pairs = zip(calls["rocflash"](), theirs, strict=True)
            gap = max((x - y).abs().max().item() for x, y in pairs)
        calls[name] = call
    ms = medians(calls, budget_ms, idle)
    row: dict[str, object] = {**asdict(case), "op": op, "difference": gap, "refused": refused}
    for name, taken in ms.items():
        row[f"{name}_ms"] = taken
        row[f"{name}_tflops"] = case.flops(op) / taken / 1e9
        if name != "rocflash":
            row[f"ratio_{name}"] = taken / ms["rocflash"]
    return row


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def cell(row: dict[str, object], key: str, form: str) -> str:
    return format(row[key], form) if key in row else "-"


def plot(rows: list[dict[str, object]], title: str, path: str) -> None:
    """One panel per dtype, head size, heads and mask: TFLOP/s of each library over lengths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in rows:
        panels.setdefault(tuple(row[k] for k in ("dtype", "d", "h", "hk", "causal")), []).append(row)
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3.6 * columns, 2.8 * lines), squeeze=False, sharey=True
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((dtype, d, h, hk, causal), shown) in zip(axes.flat, panels.items(), strict=False):
        for name in ("rocflash", *BACKENDS):
            points = [(r["length"], r[f"{name}_tflops"]) for r in shown if f"{name}_tflops" in r]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set_title(f"{dtype} d{d} h{h}/{hk}{' causal' if causal else ''}", fontsize=9)
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    axes.flat[0].set_ylim(0, 1.05 * max(r["rocflash_tflops"] for r in rows))  # shared by all
    axes.flat[0].legend(fontsize=8)
    figure.suptitle(f"{title}: TFLOP/s over tokens of a sequence")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", choices=PRODUCTS, default="forward")
    parser.add_argument(
        "--deterministic", action="store_true", help="the same gradients, bit by bit, every time"
    )
    parser.add_argument("--packed", action="store_true", help="sequences of mixed lengths")
    parser.add_argument("--quick", action="store_true", help="two lengths, short measurements")
    parser.add_argument("--dtypes", default="bf16", help="which of " + ",".join(DTYPES))
    parser.add_argument("--dims", default="64,128", help="head sizes")
    parser.add_argument("--idle", type=float, default=0, help="seconds of rest before calls")
    parser.add_argument("--output", default="build/bench/gpu_vs_torch.json")
    parser.add_argument("--plot", help="a PNG with TFLOP/s over lengths; needs matplotlib")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or torch.version.hip:
        raise SystemExit("gpu_vs_torch.py: torch sees no NVIDIA GPU")
    device = torch.cuda.get_device_name()
    print(
        f"{device}, torch {torch.__version__}, {arguments.op}: TFLOP/s and times faster than torch's"
    )
    print(f"{'':34}{'rocflash':>9}{'torch':>10}{'':9}{'differs':>9}")
    rows = []
    dims = [int(d) for d in arguments.dims.split(",")]
    for case in cases(arguments.quick, arguments.dtypes.split(","), dims, arguments.packed):
        row = measure(
            case,
            arguments.op,
            100 if arguments.quick else 400,
            arguments.deterministic,
            arguments.idle,
        )
        rows.append(row)
        theirs = "".join(
            f"{name:>10}{cell(row, f'{name}_tflops', '.0f'):>5}{cell(row, f'ratio_{name}', '.2f'):>6}x"
            for name in case.backends
        )
        print(
            f"{case.label():34}{row['rocflash_tflops']:9.0f}{theirs}{row['difference']:9.0e}",
            flush=True,
        )
    for name in BACKENDS:
        ratios = [r[f"ratio_{name}"] for r in rows if f"ratio_{name}" in r]
        if ratios:
            print(
                f"against {name}: {geometric_mean(ratios):.2f}x (geometric mean), "
                f"least {min(ratios):.2f}x"
            )
    os.makedirs(os.path.dirname(arguments.output) or ".", exist_ok=True)
    with open(arguments.output, "w") as file:
        about = {"device": device, "torch": torch.__version__, "idle": arguments.idle}
        json.dump({**about, "rows": rows}, file, indent=1)
    print(f"written: {arguments.output}")
    if arguments.plot:
        plot(rows, f"{device}, {arguments.op}", arguments.plot)
        print(f"written: {arguments.plot}")


if __name__ == "__main__":
    main()
