"""Performance model of ring attention on 2 to 1,024 GPUs, and its overlap measured on CPU
processes.

    python benchmarks/ring_attention_model.py [--card MI300X] [--length 1048576]
                                 [--heads 64 --kv-heads 8] [--forward 560 --backward 514]
    python benchmarks/ring_attention_model.py --measure

--measure runs two gloo processes on this machine and prints the hidden part of communication.

The model uses the real schedule of rocflash.distributed (hops, tiles and their sizes), the kernel
speed of one GPU in TFLOP/s (the defaults are published ones, named in the output) and stated link
bandwidths. A hop takes the longer of computation and communication. The first block needs no
communication, and in the backward dK and dV return to their owner after the last hop. The model
omits stragglers and the host's time; --launch and --latency are its known part.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple, Optional

from rocflash.distributed import Layout
from rocflash.distributed.layout import named
from rocflash.distributed.tiles import MaskBounds, hop_distances, segments_of, tiles_of


class Gpu(NamedTuple):
    """Kernel speed in TFLOP/s (bf16, head dimension 128, causal) and link bandwidth in GB/s per
    direction.
    """

    forward: float
    backward: float
    node: float  # one link to a GPU of the node
    links: int  # such links that work in parallel
    network: float  # its network port
    per_node: int
    source: str


# Published kernel speeds, and the vendors' link bandwidths for one direction.
GPUS = {
    "MI300X": Gpu(
        560,
        514,
        64,
        7,
        50,
        8,
        "AITER's published causal kernels; one xGMI link 64 GB/s; 400 Gb/s per GPU",
    ),
    "MI355X": Gpu(
        1398,
        1163,
        76.8,
        7,
        50,
        8,
        "AITER's published causal kernels; one xGMI link 76.8 GB/s; 400 Gb/s per GPU",
    ),
    "H200": Gpu(
        688,
        581,
        450,
        1,
        50,
        8,
        "cuDNN's published causal kernels; NVLink 4, 450 GB/s; 400 Gb/s per GPU",
    ),
    "H200-200G": Gpu(688, 581, 450, 1, 25, 8, "as H200, with a network of 200 Gb/s per GPU"),
}


class Shape(NamedTuple):
    length: int
    heads: int
    kv_heads: int
    size: int
    causal: bool
    window: Optional[int]
    layout: str


class Step(NamedTuple):
    """Seconds of one attention layer, forward and backward, on the slowest rank."""

    computing: float
    total: float
    hidden: float  # share of the communication that is not waited for


def _visible_pairs(tile: Any) -> int:
    """Unmasked pairs of queries and keys of a call."""
    sq, sk = len(tile.q), len(tile.k)
    left = sk + sq if tile.left < 0 else tile.left
    right = sk + sq if tile.right < 0 else tile.right

    def below(bound: int) -> int:  # pairs with key <= query position + bound
        first = sk - sq + bound + 1  # keys of the first query, unclipped
        low, high = min(sq, max(0, -first)), max(0, min(sq, sk - first))
        ramp = max(0, high - low)
        return ramp * first + (low + high - 1) * ramp // 2 + (sq - max(high, low)) * sk if sq else 0

    return below(right) - below(-left - 1)


def _hop_distances(shape: Shape, ranks: int) -> tuple[Layout, MaskBounds, tuple[int, ...]]:
    layout = named(shape.layout, shape.length, ranks)
    window = None if shape.window is None else shape.window
    bounds = MaskBounds(
        segments_of(shape.length, shape.length), window, 0 if shape.causal else None
    )
    return layout, bounds, hop_distances(bounds, layout, layout)


def step(shape: Shape, card: Gpu, ranks: int, launch: float, latency: float) -> Step:
    """The time of the real schedule.

    Ranks run in lockstep, so a hop takes the time of its slowest rank.
    """
    layout, bounds, distances = _hop_distances(shape, ranks)
    rows = -(-shape.length // ranks)
    block = 2 * rows * shape.kv_heads * shape.size * 2  # bytes of keys and values in bf16
    bandwidth = card.node if ranks <= card.per_node else card.network
    computing = total = sent = waited = 0.0
    # The first, middle and last rank have the extremes of every layout.
    watched = sorted({0, ranks // 2, ranks - 1})
    for n, distance in enumerate(distances):
        found = [
            tiles_of(bounds, layout.pieces[r], layout.pieces[(r - distance) % ranks])
            for r in watched
        ]
        pairs = max(sum(map(_visible_pairs, tiles)) for tiles in found)
        calls = max(map(len, found))
        work = 4 * pairs * shape.heads * shape.size
        last = n + 1 == len(distances)
        for speed_of_kernel, times, sent_bytes in (
            (card.forward, 1.0, 0 if last else block),
            # The next block, and the f32 gradients of the previous one.
            (card.backward, 2.5, (0 if last else block) + (2 * block if n else 0)),
        ):
            compute = times * work / (speed_of_kernel * 1e12) + calls * launch
            send = sent_bytes / (bandwidth * 1e9) + (latency if sent_bytes else 0)
            computing, sent = computing + compute, sent + send
            total, waited = total + max(compute, send), waited + max(0.0, send - compute)
    returned = 2 * block / (bandwidth * 1e9) + latency if len(distances) > 1 else 0.0
    total, sent, waited = total + returned, sent + returned, waited + returned
    return Step(computing, total, 1 - waited / sent if sent else 1.0)


def mixed(shape: Shape, card: Gpu, ranks: int, inner: int, launch: float, latency: float) -> Step:
    """2d: Ulysses within `inner` ranks.

    The ring is shorter, with more rows; the all-to-all is not overlapped.
    """
    own = shape._replace(heads=shape.heads // inner, kv_heads=max(1, shape.kv_heads // inner))
    across = card if ranks <= card.per_node else card._replace(node=card.network)
    found = step(own, across, ranks // inner, launch, latency)
    rows = -(-shape.length // ranks)
    # q, k, v and out in the forward, their gradients in the backward.
    one_way = 2 * (shape.heads + shape.kv_heads) * rows * shape.size * 2 * (inner - 1) / inner
    exchanges = 2 * one_way / (card.node * min(card.links, inner - 1) * 1e9) + 8 * latency
    return Step(found.computing, found.total + exchanges, found.hidden)


def ideal(shape: Shape, card: Gpu, ranks: int) -> float:
    """The FLOP of the whole problem, divided evenly, at full kernel speed."""
    whole = tiles_of(
        MaskBounds(
            segments_of(shape.length, shape.length), shape.window, 0 if shape.causal else None
        ),
        (range(shape.length),),
        (range(shape.length),),
    )
    work = 4 * sum(map(_visible_pairs, whole)) * shape.heads * shape.size / ranks
    return work / (card.forward * 1e12) + 2.5 * work / (card.backward * 1e12)


def table(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name in options.card.split(","):
        card = GPUS[name]
        card = card._replace(
            forward=options.forward or card.forward, backward=options.backward or card.backward
        )
        print(
            f"\n{name}: {card.forward:g} / {card.backward:g} TFLOP/s forward / backward "
            f"({card.source})"
        )
        print(
            "  ranks     rows   computing      step   communication hidden   of ideal   2d: of "
            "ideal"
        )
        for ranks in (2**n for n in range(1, 11)):
            shape = Shape(
                options.length,
                options.heads,
                options.kv_heads,
                options.size,
                not options.full,
                options.window,
                options.layout,
            )
            if options.length < 2 * ranks:
                break
            found = step(shape, card, ranks, options.launch * 1e-6, options.latency * 1e-6)
            best = ideal(shape, card, ranks)
            share, inner = best / found.total, min(ranks, card.per_node)
            times = (options.launch * 1e-6, options.latency * 1e-6)
            nodes = (
                best / mixed(shape, card, ranks, inner, *times).total
                if options.heads % inner == 0
                else 0.0
            )
            print(
                f"  {ranks:5} {options.length // ranks:8} {found.computing * 1e3:8.2f} ms "
                f"{found.total * 1e3:8.2f} ms "
                f"{found.hidden:22.0%} {share:10.1%} {nodes:14.1%}"
            )
            rows.append(
                {"card": name, "ranks": ranks, **found._asdict(), "of_ideal": share, "mixed": nodes}
            )
    return rows


def plot(rows: list[dict[str, Any]], length: int, file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name in dict.fromkeys(row["card"] for row in rows):
        own = [row for row in rows if row["card"] == name]
        (line,) = axes.plot(
            [r["ranks"] for r in own],
            [100 * r["of_ideal"] for r in own],
            marker="o",
            label=f"{name}, ring",
        )
        axes.plot(
            [r["ranks"] for r in own],
            [100 * r["mixed"] for r in own],
            **{"marker": "x", "linestyle": ":", "color": line.get_color(), "label": f"{name}, 2d"},
        )
    axes.axhline(90, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 105)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("% of ideal (model)")
    axes.set_title(f"Ring attention, {length:,} tokens, forward and backward")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)


def _measured(rank: int, ranks: int, file: str, rows: int, rounds: int, results: Any) -> None:
    """Times a ring's forward on CPU processes: the whole, its kernel calls alone, its communication
    alone.
    """
    import torch
    import torch.distributed as dist

    import rocflash.distributed as rfd
    from rocflash.distributed import hop
    from rocflash.distributed import ring as rings
    from rocflash.distributed.group import team_of

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    q, k, v = (torch.randn(1, rows, 8, 64).bfloat16() for _ in range(3))
    team, layout = team_of(None), named("zigzag", rows * ranks, ranks)
    ring = rings.Ring(team, layout, layout, hop.Heads(0, 8), hop.RowIndexing())
    bounds = MaskBounds(segments_of(layout.length, layout.length), None, 0)
    from rocflash._c.options import Options

    o = Options(causal=True)

    def whole() -> None:
        rfd.attention(q, k, v, causal=True, method="ring")

    def computing() -> None:
        merge = hop.LseMerge(q, 64)
        for distance in hop_distances(bounds, layout, layout):
            hop.forward(ring.hop(q, k, v, o, bounds, distance), merge)
        merge.finish(q.dtype, None)

    def communication() -> None:
        block = rings._own_block(k, v)
        for n in range(1, ranks):
            into = rings._Block(k, v, rows, k.dtype)
            ring.send(block.flat, into.flat, 1, f"hop {n}").wait()

    times: dict[str, list[float]] = {"whole": [], "computing": [], "communication": []}
    for n in range(rounds + 1):
        for name, call in (
            ("whole", whole),
            ("computing", computing),
            ("communication", communication),
        ):
            dist.barrier()
            start = time.perf_counter()
            call()
            if n:
                times[name].append(time.perf_counter() - start)
    if rank == 0:
        # The fastest round has the least interference of other processes.
        results.put({name: min(found) for name, found in times.items()})
    dist.barrier()
    dist.destroy_process_group()


def measure(rows: int, rounds: int) -> dict[str, float]:
    import tempfile

    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as directory:
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(_measured, (2, f"{directory}/store", rows, rounds, results), nprocs=2)
        found = results.get()
    found["efficiency"] = found["computing"] / found["whole"]
    serial = found["computing"] + found["communication"]
    found["hidden"] = min(1.0, max(0.0, (serial - found["whole"]) / found["communication"]))
    print(f"2 processes, gloo, {rows} rows each, 8 heads of 64, bf16, causal, forward:")
    for name in ("whole", "computing", "communication"):
        print(f"  {name:14} {found[name] * 1e3:8.2f} ms")
    print(
        f"  {found['efficiency']:.0%} of computing alone; {found['hidden']:.0%} of the "
        "communication is hidden"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--card", default="MI300X,MI355X,H200,H200-200G", help=f"of {', '.join(GPUS)}"
    )
    parser.add_argument("--length", type=int, default=1 << 20)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--window", type=int, help="left bound")
    parser.add_argument("--full", action="store_true", help="not causal")
    parser.add_argument("--layout", default="zigzag")
    parser.add_argument(
        "--forward",
        type=float,
        default=0,
        help="TFLOP/s of the kernels in place of the published ones",
    )
    parser.add_argument("--backward", type=float, default=0)
    parser.add_argument("--launch", type=float, default=10, help="microseconds per kernel call")
    parser.add_argument("--latency", type=float, default=20, help="microseconds per message")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--plot", help="file for the plot")
    parser.add_argument(
        "--measure", action="store_true", help="measure the overlap of two CPU processes"
    )
    parser.add_argument("--rows", type=int, default=2048, help="rows per process, with --measure")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rows: Any = measure(options.rows, options.rounds) if options.measure else table(options)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    if options.plot and not options.measure:
        plot(rows, options.length, options.plot)


if __name__ == "__main__":
    main()
