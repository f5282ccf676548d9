"""The capabilities of a device, by workspace queries, which reject what a call rejects."""

from __future__ import annotations

from functools import cache

from ..errors import Error
from . import abi, frames

DTYPES = {"f16": (abi.DL_FLOAT, 16), "bf16": (abi.DL_BFLOAT, 16), "f32": (abi.DL_FLOAT, 32)}
OPERATIONS = ("forward", "backward", "decode")


def _query(operation: str, device: tuple[int, int], dtype: tuple[int, int], size: int) -> None:
    """Queries the workspace of one query and one key of one head; limits on lengths are not
    covered.
    """
    frame = frames.Frame(9)

    def add(kind: type, name: str, of: tuple[int, int], *shape: int) -> None:
        strides = tuple(shape[-1:] * (len(shape) - 1)) + (1,)
        frame.point(frames.word_of(kind, name), frame.describe(of, device, shape, strides))

    row = (dtype, 1, 1, 1, size)
    lse = (DTYPES["f32"], 1, 1, 1)
    for name in "qkv":
        add(abi.Problem, name, *row)
    if operation == "backward":
        for name in ("dout", "out", "dq", "dk", "dv"):
            add(abi.BackwardTensors, name, *row)
        add(abi.BackwardTensors, "lse", *lse)
    else:
        add(abi.ForwardOutputs, "out", *row)
        add(abi.ForwardOutputs, "lse", *lse)
    frame.prepare(operation)
    frame.need()


@cache
def capabilities(device: tuple[int, int]) -> dict[str, dict[str, int]]:
    """The largest head dimension per operation and dtype; 0: not supported."""
    sizes = (abi.limits().max_head_dim, 512, 256, 192, 128, 64, 32)
    found: dict[str, dict[str, int]] = {}
    for operation in OPERATIONS:
        for name, dtype in DTYPES.items():
            answers = found.setdefault(operation, {})
            answers[name] = 0
            for size in sizes:
                try:
                    _query(operation, device, dtype, size)
                except Error:
                    continue
                answers[name] = size
                break
    return found


def text_of(answers: dict[str, int]) -> str:
    """ "f16 bf16 f32 to 512": dtypes grouped by their largest head dimension."""
    sizes = sorted(set(answers.values()), reverse=True)
    parts = []
    for size in sizes:
        names = " ".join(name for name, found in answers.items() if found == size)
        parts.append(f"{names} to {size}" if size else f"not {names}")
    return ", ".join(parts)
