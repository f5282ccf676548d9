"""rocflash.distributed.attention against one call on the whole sequence: random small problems,
forward and backward.

Lengths are 1 to 3 rows per rank, where stripes have one row, ranks have none and node layouts join.
Every draw combines options at random. Rows that no sequence uses hold NaN, which must not reach any
result.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import distributed_cases as cases
import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from torch import Tensor

import rocflash
import rocflash.distributed as rfd
from rocflash.distributed.layout import Layout, layout_from_spec, layout_of

CASES = 160
HEADS = ((4, 4), (4, 2), (4, 1), (2, 2), (6, 2), (8, 2), (3, 3))


def random_spec(draw: random.Random, length: int, ranks: int) -> str:
    """Any split into contiguous pieces, or stripes in any order of ranks."""
    held: list[list[range]] = [[] for _ in range(ranks)]
    if draw.random() < 0.3:
        held = [[range(r, length, ranks)] for r in range(ranks)]
        draw.shuffle(held)
    else:
        cuts = sorted(draw.randint(0, length) for _ in range(draw.randint(0, 2 * ranks)))
        parts = [range(a, b) for a, b in zip([0, *cuts], [*cuts, length])]
        draw.shuffle(parts)
        for part in parts:
            held[draw.randrange(ranks)].append(part)
    return Layout(held).spec


def drawn(seed: int, most_ranks: int = 4) -> dict[str, Any]:
    """A problem as numbers, from which ranks and the test make the same tensors."""
    draw = random.Random(seed)
    ranks = draw.choice([n for n in (2, 3, 4, 4, 6) if n <= most_ranks])
    heads, kv_heads = draw.choice(HEADS)
    methods = ["ring", "auto", "auto"]
    if heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0):
        methods.append("ulysses")
    if ranks % 2 == 0 and ranks > 2 and heads % 2 == 0:
        methods += ["2d", "2d"]
    sq = draw.randint(1, 3 * ranks)
    sk = sq if draw.random() < 0.3 else draw.randint(1, 3 * ranks)
    case: dict[str, Any] = {
        **{
            "seed": seed,
            "ranks": ranks,
            "heads": heads,
            "kv_heads": kv_heads,
            "method": draw.choice(methods),
        },
        **{"sq": sq, "sk": sk, "batch": draw.choice((1, 2)), "packed": draw.random() < 0.25},
        "layout": draw.choice(("zigzag", "striped", "striped", "contiguous")),
    }
    if sq == sk and draw.random() < 0.3:
        case["spec"] = random_spec(draw, sq, ranks)

    def sometimes(name: str, make: Any, chance: float = 0.25) -> None:
        if draw.random() < chance:
            case[name] = make()

    if case["packed"]:
        case["batch"] = draw.randint(1, 3)
        for name, length in (("cu_q", sq), ("cu_k", sk)):
            case[name] = sorted(draw.randint(0, length) for _ in range(case["batch"] + 1))
            if draw.random() < 0.7:
                case[name][0], case[name][-1] = 0, length
    sometimes("causal", lambda: True, 0.4)
    sometimes("window", lambda: (draw.choice((-1, 0, 1, 4)), draw.choice((-1, 0, 2))), 0.3)
    sometimes("attention_chunk", lambda: draw.randint(1, 5))
    sometimes("softcap", lambda: 2.5)
    sometimes("alibi", lambda: draw.choice((1, 2)), 0.35)
    sometimes("sinks", lambda: True, 0.35)
    sometimes("dropout", lambda: True)
    sometimes("used_q", lambda: [draw.random() for _ in range(case["batch"])])
    sometimes("used_k", lambda: [draw.random() for _ in range(case["batch"])])
    sometimes("leftpad", lambda: [draw.random() * 0.7 for _ in range(case["batch"])], 0.2)
    sometimes("mask", lambda: [draw.random() < 0.6 for _ in range(4)], 0.15)
    sometimes("bias", lambda: [draw.random() < 0.6 for _ in range(4)], 0.2)
    return case


def _in_use(case: dict[str, Any], name: str, total: int) -> tuple[list[range], Tensor]:
    """Rows in use of each sequence, as rows of the tensor (packed) or of its entry, and their
    numbers.
    """
    ends = case.get(f"cu_{name}")
    whole = (
        [range(total)] * case["batch"]
        if ends is None
        else [range(a, b) for a, b in zip(ends, ends[1:])]
    )
    shares = case.get(f"used_{name}", [1.0] * case["batch"])
    counts = [round(share * len(rows)) for share, rows in zip(shares, whole)]
    return [rows[:n] for rows, n in zip(whole, counts)], torch.tensor(counts, dtype=torch.int32)


def inputs_of(case: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """q, k, v and the gradients of out and lse of the whole problem, and its options."""
    draw = torch.Generator().manual_seed(case["seed"])
    batch, heads, sq, sk = (case[name] for name in ("batch", "heads", "sq", "sk"))
    rows = {"q": sq, "k": sk, "v": sk, "dout": sq}
    counts = {"q": heads, "k": case["kv_heads"], "v": case["kv_heads"], "dout": heads}
    sizes = {"q": 8, "k": 8, "v": 4, "dout": 4}
    packed = case["packed"]
    o: dict[str, Any] = {
        n: case[n] for n in ("causal", "window", "attention_chunk", "softcap") if n in case
    }
    queries, seqused_q = _in_use(case, "q", sq)
    keys, seqused_k = _in_use(case, "k", sk)
    longest = [sq, sk]
    if packed:
        o["cu_seqlens_q"], o["cu_seqlens_k"] = (
            torch.tensor(case[n], dtype=torch.int32) for n in ("cu_q", "cu_k")
        )
        longest = [max(1, int(o[n].diff().max())) for n in ("cu_seqlens_q", "cu_seqlens_k")]
    if "used_q" in case:
        o["seqused_q"] = seqused_q
    if "used_k" in case:
        o["seqused_k"] = seqused_k
    if "leftpad" in case:
        pads = [int(share * len(x)) for share, x in zip(case["leftpad"], keys)]
        o["leftpad_k"] = torch.tensor(pads, dtype=torch.int32)
        keys = [x[pad:] for x, pad in zip(keys, pads)]
    tensors = {}
    for name, n in rows.items():
        x = torch.randn(*(() if packed else (batch,)), n, counts[name], sizes[name], generator=draw)
        unused = torch.ones(x.shape[: 1 if packed else 2], dtype=torch.bool)
        for entry, used in enumerate(queries if name in ("q", "dout") else keys):
            (unused if packed else unused[entry])[used.start : used.stop] = False
        tensors[name] = x.masked_fill(unused[..., None, None], torch.nan)
    unused = tensors["dout"][..., 0].isnan().transpose(-1, -2)
    tensors["dlse"] = torch.randn(unused.shape, generator=draw).masked_fill(unused, torch.nan)
    if "alibi" in case:
        o["alibi_slopes"] = (
            torch.rand(*((batch,) if case["alibi"] == 2 else ()), heads, generator=draw) * 0.5
        )
    if "sinks" in case:
        o["sinks"] = torch.randn(heads, generator=draw)
    if "dropout" in case:
        o["dropout_p"], o["rng_state"] = 0.25, torch.tensor([7, 2**40 + 9])
    for name in ("mask", "bias"):
        if name in case:
            shape = [n if full else 1 for n, full in zip((batch, heads, *longest), case[name])]
            x = torch.randn(shape, generator=draw)
            o[name] = x > -0.7 if name == "mask" else x
    return tensors, o


def layouts_of(case: dict[str, Any]) -> tuple[Any, Layout, Layout]:
    if "spec" in case:
        layout = layout_from_spec(case["spec"])
        return layout, layout, layout
    return case["layout"], *(
        layout_of(case["layout"], case[n], case["ranks"]) for n in ("sq", "sk")
    )


def of_rank(case: dict[str, Any]) -> Any:
    """On a rank: its part of the results."""
    group = cases.group_of(case["ranks"])
    rank = dist.get_rank()
    if rank >= case["ranks"]:
        return None
    tensors, options = inputs_of(case)
    layout, q_layout, k_layout = layouts_of(case)
    dim = 0 if case["packed"] else 1
    at = {
        name: torch.tensor(x.positions(rank), dtype=torch.int64)
        for name, x in (("q", q_layout), ("k", k_layout))
    }
    own = {
        name: x.index_select(-1 if name == "dlse" else dim, at["k" if name in "kv" else "q"])
        for name, x in tensors.items()
    }
    for name in ("mask", "bias"):
        if name in options and options[name].shape[2] > 1 and not case["packed"]:
            options[name] = options[name].index_select(2, at["q"])

    def call(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Any:
        where = {"group": group, "layout": layout, "method": case["method"]}
        return rfd.attention(q, k, v, length=case["sq"], length_k=case["sk"], **where, **given)

    return {name: x.numpy() for name, x in cases.attend(own, options, call).items()}


def of_ranks(batch: list[dict[str, Any]]) -> list[Any]:
    return [of_rank(case) for case in batch]


def assembled(
    case: dict[str, Any], parts: list[dict[str, Any]], bias_rows: int
) -> dict[str, Tensor]:
    _, q_layout, k_layout = layouts_of(case)
    packed = case["packed"]
    found: dict[str, Tensor] = {}
    for name in parts[0]:
        pieces = [torch.from_numpy(part[name]) for part in parts]
        if name in ("dsinks", "dalibi_slopes") or (name == "dbias" and (packed or bias_rows == 1)):
            found[name] = sum(pieces)  # type: ignore[assignment]
            continue
        layout = k_layout if name in ("dk", "dv") else q_layout
        dim = 2 - packed if name == "lse" else 2 if name == "dbias" else 1 - packed
        order = torch.tensor([p for rank in range(case["ranks"]) for p in layout.positions(rank)])
        found[name] = torch.cat(pieces, dim).index_select(dim, order.long().argsort())
    return found


def differences(case: dict[str, Any], parts: list[dict[str, Any]]) -> list[str]:
    """Results that are not those of one call on the whole sequence."""
    tensors, options = inputs_of(case)
    wanted = cases.attend(tensors, options, rocflash.attention)
    bias = options.get("bias")
    found = assembled(case, parts, 1 if bias is None else bias.shape[2])
    wrong = []
    for name, want in wanted.items():
        got = found[name]
        if got.shape != want.shape:
            wrong.append(f"{name}: shape {tuple(got.shape)}, not {tuple(want.shape)}")
            continue
        differing = got.isfinite() != want.isfinite()
        if differing.any():
            wrong.append(f"{name}: {float(got[differing][0])}, not {float(want[differing][0])}")
            continue
        error = (
            (got - want).masked_fill(~want.isfinite(), 0).abs().max()
            if want.numel()
            else torch.zeros(())
        )
        scale = (
            want.masked_fill(~want.isfinite(), 0).abs().max().clamp(min=1) if want.numel() else 1.0
        )
        if not error <= 2e-5 * scale:
            wrong.append(f"{name}: error {float(error):.3g}")
    return wrong


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    found = Ranks(4)
    for size in (2, 3):
        found.run(cases.make_group, size)
    yield found
    found.close()


def check(ranks: Ranks, batch: list[dict[str, Any]]) -> list[str]:
    found = ranks.run(of_ranks, batch)
    wrong = []
    for n, case in enumerate(batch):
        differing = differences(case, [parts[n] for parts in found[: case["ranks"]]])
        wrong += [f"{case}: {', '.join(differing)}"] if differing else []
    return wrong


def test_random_problems(four: Ranks) -> None:
    wrong = check(four, [drawn(seed) for seed in range(CASES)])
    assert not wrong, "\n".join(wrong)
