"""rocflash.distributed.attention over gloo, 2 and 4 processes: every option, method and layout,
against the reference.

The assembled results have at most twice the error of naive attention against the double-precision
reference, three times for gradients.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import distributed_cases as cases
import pytest
import torch
from ranks import Failed, Ranks

from rocflash.distributed.layout import Layout
from rocflash.errors import InvalidArgument

OPTIONS = (
    "none",
    "causal",
    "causal+scale+softcap",
    "window",
    "causal+narrow",
    "chunk",
    "causal+chunk",
    "alibi",
    "causal+alibi",
    "alibis+window",
    "sinks",
    "causal+sinks+softcap",
    "dropout",
    "causal+dropout+alibi",
    "mask",
    "padding+causal",
    "bias+alibi",
    "packed",
    "packed+causal",
    "packed+causal+narrow+sinks",
    "packed+alibis",
    "packed+causal+chunk+alibi",
    "packed+dropout",
    "used+leftpad+causal",
    "used+window+alibis",
    "leftpad+causal+chunk+sinks",
    "used+leftpad+dropout",
    "used+bias+causal",
    "packed+used+bias",
    "mask+dropout+bias+alibis",
)
LAYOUTS = ("zigzag", "striped", "contiguous")
# (queries, keys): divisible, not divisible, different lengths, about two rows per rank.
LENGTHS = ((48, 48), (37, 37), (20, 41), (41, 20), (9, 9))


def listed() -> list[dict[str, Any]]:
    """Every option with every layout in a ring of 4, and with the other methods; other parameters
    alternate.
    """
    draw = random.Random(5)
    found = []
    for options in OPTIONS:
        ways = [("ring", layout, 4) for layout in LAYOUTS]
        ways += [("ring", draw.choice(LAYOUTS), 2)]
        ways += [("ulysses", draw.choice(LAYOUTS), 4), ("2d", draw.choice(LAYOUTS), 4)]
        for n, (method, layout, ranks) in enumerate(ways):
            sq, sk = LENGTHS[n % 2] if n < 3 else draw.choice(LENGTHS)
            found.append(
                {
                    **{"options": options, "method": method, "layout": layout, "ranks": ranks},
                    **{
                        "sq": sq,
                        "sk": sk,
                        "seed": len(found),
                        "dtype": ("f32", "bf16", "f16")[n % 3],
                    },
                }
            )
    return found


def split_at_random() -> list[dict[str, Any]]:
    """Random pieces, on random ranks in random order."""
    draw, found = random.Random(9), []
    for n in range(12):
        length = draw.randint(5, 40)
        cuts = sorted(draw.randint(0, length) for _ in range(draw.randint(1, 8)))
        parts = [range(a, b) for a, b in zip([0, *cuts], [*cuts, length])]
        draw.shuffle(parts)
        held: list[list[range]] = [[] for _ in range(4)]
        for part in parts:
            held[draw.randrange(4)].append(part)
        if n % 3 == 0:  # a permutation of stripes
            held = [[range(r, length, 4)] for r in range(4)]
            draw.shuffle(held)
        options = draw.choice(
            ("causal", "window", "causal+alibi", "causal+dropout", "packed+causal", "chunk")
        )
        found.append(
            {
                **{
                    "options": options,
                    "method": draw.choice(("ring", "ring", "ulysses", "2d")),
                    "ranks": 4,
                },
                **{"sq": length, "sk": length, "seed": 500 + n, "dtype": ("f32", "bf16")[n % 2]},
                **{"spec": Layout(held).spec, "layout": "any"},
            }
        )
    return found


def name_of(case: dict[str, Any]) -> str:
    rows = f"{case['sq']}x{case['sk']}"
    return (
        f"{case['options']}-{case['method']}{case['ranks']}-{case['layout']}-{rows}-{case['dtype']}"
    )


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    found = Ranks(4)
    for size in (2, 3):
        found.run(cases.make_group, size)  # a collective call
    yield found
    found.close()


def by_ranks(four: Ranks, case: dict[str, Any]) -> dict[str, tuple[float, float]]:
    parts = four.run(cases.of_rank, case)
    return cases.errors(case, cases.assembled(case, parts))


@pytest.mark.parametrize("case", [*listed(), *split_at_random()], ids=name_of)
def test_against_the_reference(four: Ranks, case: dict[str, Any]) -> None:
    found = by_ranks(four, case)
    # The maximum over elements varies: average it over sixteen draws.
    if cases.over_the_bound(found):
        draws = [found] + [
            by_ranks(four, {**case, "seed": 10_000 * n + case["seed"]}) for n in range(1, 16)
        ]
        wrong = cases.over_the_bound_on_average(draws)
        assert not wrong, wrong


def test_auto_method_computes_the_same(four: Ranks) -> None:
    for heads, kv_heads in ((4, 4), (6, 2), (5, 1), (8, 1)):
        case = {
            **{
                "options": "causal",
                "method": "auto",
                "layout": "zigzag",
                "ranks": 4,
                "sq": 26,
                "sk": 26,
            },
            **{"seed": heads, "dtype": "f32", "heads": heads, "kv_heads": kv_heads},
        }
        found = by_ranks(four, case)
        assert not cases.over_the_bound(found), found


def rejected(four: Ranks, message: str, **changed: Any) -> None:
    """All ranks reject the call before they send data."""
    case = {
        **{"options": "none", "method": "ring", "layout": "zigzag", "ranks": 4, "sq": 16, "sk": 16},
        **{"seed": 1, "dtype": "f32", **changed},
    }
    with pytest.raises(Failed, match=message) as found:
        four.run(cases.of_rank, case)
    assert None not in found.value.kinds
    assert all("Error" in kinds and "RankError" not in kinds for kinds in found.value.kinds)


def test_errors_name_the_argument(four: Ranks) -> None:
    rejected(four, "method is 'ulysses'.*6 heads of q", method="ulysses", heads=6)
    rejected(four, "method is 'spiral'; it must be one of auto, ring", method="spiral")
    rejected(four, "q's 3 heads must be a multiple", heads=3)


def reject_options() -> list[str]:
    import rocflash.distributed as rfd

    q = torch.zeros(1, 4, 2, 8)
    found = []
    for given in (
        {"seqused_k": torch.full((1,), 17, dtype=torch.int32)},
        {"leftpad_k": torch.ones(2, dtype=torch.int32)},
        {"block_table": torch.ones(1, 1, dtype=torch.int32)},
        {"cache_batch_idx": torch.ones(1, dtype=torch.int64)},
        {"return_weights": True},
        {"windows": 3},
        {"layout": "zagzig"},
        {"group": 3},
        {"window": (-3, 0)},
        {"dropout_p": 1.5, "rng_state": torch.tensor([1, 2])},
        {"sinks": torch.zeros(3)},
        {"alibi_slopes": torch.zeros(3)},
        {"bias": torch.zeros(1, 2, 4, 5)},
        {"cu_seqlens_q": torch.tensor([0, 4], dtype=torch.int32)},
        {"length": 26},
        {"softcap": "much"},
    ):
        try:
            rfd.attention(q, q, q, **{"method": "ring", **given})
            found.append("nothing")
        except (RuntimeError, TypeError) as error:
            found.append(str(error))
    return found


def test_unsupported_options_are_rejected(four: Ranks) -> None:
    wanted = (
        "seqused_k is 17 for sequence 0; it must be 0 to its length, 16",
        "leftpad_k is torch.int32 of shape (2,); it must be int32 of shape (b,) = (1,)",
        "block_table has 1; it must be 0 to 0, the pages of k",
        "cache_batch_idx is torch.int64 of shape (1,); it must be int32 of shape (1,)",
        "return_weights is True",
        "unexpected keyword argument 'windows'",
        "layout is 'zagzig'; it must be one of zigzag, striped, contiguous",
        "group has type int; it must be a ProcessGroup, a DeviceMesh or None",
        "window is -3",
        "dropout_p is 1.5",
        "sinks has shape (3,); it must be (2,)",
        "alibi_slopes has shape (3,); it must be (2,) or (1, 2)",
        "bias has shape (1, 2, 4, 5); it must be (1, 2, 4, 16)",
        "cu_seqlens_k is None, but its counterpart is given",
        "q has 4 rows; rank",
        "softcap is 'much'",
    )
    for rank, found in enumerate(four.run(reject_options)):
        for text, message in zip(found, wanted, strict=True):
            assert message in text, (rank, text)


def test_a_process_group_is_required() -> None:
    import rocflash.distributed as rfd

    q = torch.zeros(1, 4, 2, 8)
    with pytest.raises(
        InvalidArgument, match="^group requires torch.distributed, which is not initialized"
    ):
        rfd.attention(q, q, q)
