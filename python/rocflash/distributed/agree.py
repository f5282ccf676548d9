"""Do all ranks call alike? One small exchange before a call, in a debug mode.

`ROCFLASH_DISTRIBUTED_DEBUG=1`, or `check=True` of a call, compares shapes, dtypes and options. All ranks then
raise the same error, which names rank and argument, instead of waiting for each other.
"""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from ..errors import InvalidArgument
from .exchange import objects_of_all
from .group import Team


def asked_for(check: Any) -> bool:
    if check is not None:
        return bool(check)
    return os.environ.get("ROCFLASH_DISTRIBUTED_DEBUG", "") not in ("", "0")


def _told(name: str, x: Any) -> Any:
    """What must be equal of an argument."""
    if not isinstance(x, Tensor):
        return repr(x)
    shape = list(x.shape)
    if name in ("q", "k", "v") and len(shape) >= 3:
        shape[-3] = "rows"  # ranks may differ in these
    if name in ("mask", "bias") and len(shape) == 4 and shape[2] > 1:
        shape[2] = "rows"
    text = f"{str(x.dtype).removeprefix('torch.')} of shape ({', '.join(map(str, shape))}) on {x.device.type}"
    if name == "block_table":
        return f"{x.dtype} on {x.device.type}"  # each rank's own
    if name.startswith(("cu_seqlens", "seqused", "leftpad")) or name == "rng_state":
        text += f" with {x.tolist()}"
    return text + (", with gradient" if x.requires_grad else "")


def compare(team: Team, call: str, given: dict[str, Any], rows: dict[str, tuple[int, list[int]]]) -> None:
    """Raises on every rank if an argument differs on any, or one has other rows than its layout says.

    `rows` has, for each tensor, this rank's number of rows and the numbers that all ranks should have.
    """
    mine = {
        "call": call,
        "given": {name: _told(name, x) for name, x in given.items()},
        "rows": rows,
    }
    everyone = objects_of_all(mine, team)
    first = everyone[0]
    for rank, other in enumerate(everyone):
        if other["call"] != first["call"]:
            raise InvalidArgument(
                f"rank {rank}: calls {other['call']}, but rank 0 calls {first['call']}; all must call alike"
            )
        for name, value in other["given"].items():
            if value != first["given"].get(name):
                raise InvalidArgument(
                    f"rank {rank}: {name} is {value}, but {first['given'].get(name)} on rank 0; it must be the "
                    "same on all ranks"
                )
    # By rank 0's expectation: where no length is given, a rank's own follows from its own rows.
    for name, (_, expected) in first["rows"].items():
        found = [other["rows"][name][0] for other in everyone]
        for rank, (own, wanted) in enumerate(zip(found, expected)):
            if own != wanted:
                raise InvalidArgument(
                    f"rank {rank}: {name} has {own} rows; the layout of {sum(expected)} rows gives it {wanted}, and rank 0 "
                    f"has {found[0]}. Where ranks hold different numbers, length= must say how many there are in all"
                )
