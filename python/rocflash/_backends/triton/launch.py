"""Launch plan: the kernels of a problem and their arguments (pure functions), and their launch.

Triton is imported when the first kernel runs. Only `run` launches, so that tests can redirect
launches, for example to kernels compiled ahead of time and run in the simulator.
"""

from __future__ import annotations

import ctypes
import math
import os
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ...errors import Unsupported
from ..problem import Problem
from . import tiles
from .arguments import Dropout, Heads, Lengths, MaskBounds, Numbers, Pages, PerScore, Rows, Score

_LOG2_E = 1 / math.log(2)
AUTOTUNE = "FLASH_ATTENTION_TRITON_AMD_AUTOTUNE"


class Launch(NamedTuple):
    kernel: str
    arguments: dict[str, Any]  # by name, without sizes of tiles
    constants: dict[str, int]  # head dimensions, and as tiles have them
    longest: int  # rows that are split into blocks
    slices: int  # sequences times heads
    rows_by: str  # the size of those blocks, a field of Tile

    def programs(self, tile: tiles.Tile) -> int:
        return -(-self.longest // getattr(tile, self.rows_by)) * self.slices

    def compiled_for(self, tile: tiles.Tile) -> dict[str, int]:
        """The kernel's constants."""
        sizes = {**self.constants, "BLOCK_M": tile.block_m}
        return sizes if self.kernel == "dout_dot_out" else {**sizes, "BLOCK_N": tile.block_n}


def _rows(x: Tensor, packed: bool) -> Rows:
    return Rows(x, 0 if packed else x.stride(0), x.stride(-3), x.stride(-2))


def _numbers(x: Tensor, packed: bool) -> Numbers:
    return Numbers(x, 0 if packed else x.stride(0), x.stride(-2))


def _per_score(x: Optional[Tensor]) -> Optional[PerScore]:
    return (
        None
        if x is None
        else PerScore(x, *(0 if n == 1 else step for n, step in zip(x.shape, x.stride())))
    )


def _signed(x: int) -> int:
    """The same 32 bits as a number in the range of int32."""
    return ctypes.c_int32(x & 0xFFFFFFFF).value


def random_keys(rng_state: Optional[Tensor]) -> dict[str, int]:
    """Philox's key and the counter's last word, from seed and offset."""
    seed, offset = (0, 0) if rng_state is None else rng_state.tolist()
    high = (seed >> 32) ^ (offset >> 32)
    return {"key_0": _signed(seed), "key_1": _signed(high), "offset": _signed(offset)}


def dropout_of(p: float) -> Optional[Dropout]:
    """The threshold and scale of dropout as in the library: p is an f32 number."""
    p = ctypes.c_float(p).value
    if not p:
        return None
    return Dropout(int((1.0 - p) * 65536 + 0.5), 1.0 / (1.0 - p))


def _score(p: Problem) -> Score:
    """Scores are in base 2 if they are only products q·k times at most 1, which do not overflow.
    Bias, ALiBi and softcap can be as large as f32 allows, and log2(e) times that would be infinite.
    """
    o = p.options
    slopes = o.alibi_slopes
    natural = (
        bool(o.softcap)
        or any(x is not None for x in (slopes, o.bias, o.sinks))
        or abs(p.scale) * _LOG2_E > 1
    )
    # A softcap below 2**-100 leaves differences of scores that exp rounds to 1; its inverse must be
    # finite.
    softcap = max(o.softcap, 2.0**-100) if o.softcap else None
    return Score(
        p.scale if natural else p.scale * _LOG2_E,
        p.scale,
        _LOG2_E if natural else None,
        softcap,
        None if softcap is None else 16 / softcap,
        slopes,
        0 if slopes is None or slopes.dim() == 1 else p.heads,
        _per_score(o.bias),
        _per_score(None if o.mask is None else o.mask.view(torch.uint8)),
    )


def _shared(p: Problem) -> dict[str, Any]:
    """The arguments of all kernels except dout_dot_out."""
    o = p.options
    return {
        "lengths": Lengths(
            o.cu_seqlens_q, o.cu_seqlens_k, o.seqused_q, o.seqused_k, o.leftpad_k, o.cache_batch_idx
        ),
        "heads": Heads(p.heads, p.heads // p.heads_k),
        "score": _score(p),
        "bounds": MaskBounds(p.left, p.right, o.attention_chunk or None),
        "dropout": dropout_of(o.dropout_p),
        "length_q": p.rows_q,
        "length_k": p.rows_k,
        **random_keys(o.rng_state if o.dropout_p else None),
    }


def _pages(p: Problem) -> Optional[Pages]:
    table = p.options.block_table
    return (
        None if table is None else Pages(table, table.shape[1], p.k.shape[1], max(p.k.shape[0], 1))
    )


def _sizes(p: Problem) -> dict[str, int]:
    return {"D": p.d, "DV": p.dv, "BLOCK_D": tiles.padded(p.d), "BLOCK_DV": tiles.padded(p.dv)}


def forward_launch(p: Problem, out: Tensor, lse: Tensor) -> Launch:
    arguments = {
        "q": _rows(p.q, p.packed_q),
        "k": _rows(p.k, p.packed_k),
        "v": _rows(p.v, p.packed_k),
        "out": _rows(out, p.packed_q),
        "lse": _numbers(lse, p.packed_q),
        "sinks": None if p.options.sinks is None else p.options.sinks.contiguous(),
        "pages": _pages(p),
        **_shared(p),
        "longest_q": p.longest_q,
    }
    return Launch(
        "attention_forward", arguments, _sizes(p), p.longest_q, p.batch * p.heads, "block_m"
    )


def statistics_launch(p: Problem, lse: Tensor, highest: Tensor, log_total: Tensor) -> Launch:
    shared = {
        name: x
        for name, x in _shared(p).items()
        if name not in ("dropout", "key_0", "key_1", "offset")
    }
    arguments = {
        "q": _rows(p.q, p.packed_q),
        "k": _rows(p.k, p.packed_k),
        "lse": _numbers(lse, p.packed_q),
        "highest": _numbers(highest, p.packed_q),
        "log_total": _numbers(log_total, p.packed_q),
        "sinks": None if p.options.sinks is None else p.options.sinks.contiguous(),
        "pages": _pages(p),
        **shared,
        "longest_q": p.longest_q,
    }
    sizes = {"D": p.d, "BLOCK_D": tiles.padded(p.d)}
    return Launch("softmax_statistics", arguments, sizes, p.longest_q, p.batch * p.heads, "block_m")


def weights_launch(p: Problem, weights: Tensor, highest: Tensor, log_total: Tensor) -> Launch:
    arguments = {
        "q": _rows(p.q, p.packed_q),
        "k": _rows(p.k, p.packed_k),
        "weights": Rows(weights, weights.stride(0), weights.stride(2), weights.stride(1)),
        "highest": _numbers(highest, p.packed_q),
        "log_total": _numbers(log_total, p.packed_q),
        "pages": _pages(p),
        **_shared(p),
        "longest_q": p.longest_q,
    }
    sizes = {"D": p.d, "BLOCK_D": tiles.padded(p.d)}
    return Launch("attention_weights", arguments, sizes, p.longest_q, p.batch * p.heads, "block_m")


def backward_launches(
    p: Problem,
    dout: Tensor,
    out: Tensor,
    highest: Tensor,
    log_total: Tensor,
    delta: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    dslopes: Optional[Tensor],
    dbias: Optional[Tensor],
) -> list[Launch]:
    """dq (with dslopes and dbias) may be absent, and so may dk with dv."""
    shared, sizes, slices = _shared(p), _sizes(p), p.batch * p.heads
    of_rows = {
        "dout": _rows(dout, p.packed_q),
        "out": _rows(out, p.packed_q),
        "delta": _numbers(delta, p.packed_q),
        "lengths": shared["lengths"],
        "heads": shared["heads"],
        "length_q": p.rows_q,
        "longest_q": p.longest_q,
    }
    values = {"DV": sizes["DV"], "BLOCK_DV": sizes["BLOCK_DV"]}
    found = [Launch("dout_dot_out", of_rows, values, p.longest_q, slices, "block_m")]
    inputs = {
        "q": _rows(p.q, p.packed_q),
        "k": _rows(p.k, p.packed_k),
        "v": _rows(p.v, p.packed_k),
        "dout": of_rows["dout"],
        "highest": _numbers(highest, p.packed_q),
        "log_total": _numbers(log_total, p.packed_q),
        "delta": of_rows["delta"],
        **shared,
    }
    if dk is not None and dv is not None:
        results = {
            "dk": _rows(dk, p.packed_k),
            "dv": _rows(dv, p.packed_k),
            "longest_k": p.longest_k,
        }
        slices_k = p.batch * p.heads_k
        found.append(
            Launch(
                "gradients_of_keys", {**inputs, **results}, sizes, p.longest_k, slices_k, "block_n"
            )
        )
    if dq is not None:
        tilt = None if dslopes is None else _numbers(dslopes, p.packed_q)
        results = {
            "dq": _rows(dq, p.packed_q),
            "dslopes": tilt,
            "dbias": _per_score(dbias),
            "longest_q": p.longest_q,
        }
        found.append(
            Launch(
                "gradients_of_queries", {**inputs, **results}, sizes, p.longest_q, slices, "block_m"
            )
        )
    return found


@lru_cache(maxsize=1)
def kernels() -> dict[str, Any]:
    """The kernels by name. Imports Triton."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise Unsupported(
            f"backend is 'triton'; Triton cannot be imported ({error}). Install it: pip install "
            "'rocflash[triton]' or pip install triton; or choose another backend, such as 'native'"
        ) from error
    from . import backward, forward

    return {
        name: getattr(module, name)
        for module, names in (
            (forward, ("attention_forward", "softmax_statistics", "attention_weights")),
            (backward, ("dout_dot_out", "gradients_of_keys", "gradients_of_queries")),
        )
        for name in names
    }


def is_interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU (TRITON_INTERPRET=1)."""
    return type(kernels()["attention_forward"]).__name__ == "InterpretedFunction"


@lru_cache(maxsize=8)
def family_of_device(index: int) -> str:
    if is_interpreted():
        return tiles.INTERPRETER
    if getattr(torch.version, "hip", None):
        return tiles.family_of(torch.cuda.get_device_properties(index).gcnArchName)
    return tiles.NVIDIA


def autotunes() -> bool:
    return os.environ.get(AUTOTUNE, "").strip().upper() in ("TRUE", "1")


# The tile selected for a kind of launch on a device.
_chosen: dict[Any, tiles.Tile] = {}


def _kind(launch: Launch, device: torch.device, tuned: bool) -> Any:
    a = launch.arguments
    dtype = next(a[name].data.dtype for name in ("q", "dout") if name in a)
    options = [a.get(name) is None for name in ("sinks", "pages", "dropout", "dslopes", "dbias")]
    for name in ("lengths", "score", "bounds"):
        options += [x is None for x in a.get(name, ())]
    size = (
        (launch.longest.bit_length(), launch.slices.bit_length(), a["heads"].group) if tuned else ()
    )
    return (launch.kernel, device, dtype, *launch.constants.values(), *options, *size)


def _start(launch: Launch, tile: tiles.Tile) -> None:
    kernel = kernels()[launch.kernel]
    kernel[(launch.programs(tile),)](
        **launch.arguments,
        **launch.compiled_for(tile),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _first_that_fits(launch: Launch, candidates: list[tiles.Tile]) -> tiles.Tile:
    from triton.runtime.errors import OutOfResources

    for tile in candidates[:-1]:
        try:
            _start(launch, tile)
            return tile
        except OutOfResources:
            continue
    _start(launch, candidates[-1])
    return candidates[-1]


def _fastest(launch: Launch, candidates: list[tiles.Tile]) -> tiles.Tile:
    """Runs the launch with each tile that fits; results are equal, since no kernel accumulates in
    memory.
    """
    from triton.runtime.errors import OutOfResources
    from triton.testing import do_bench

    times: dict[tiles.Tile, float] = {}
    for tile in candidates:
        try:
            times[tile] = do_bench(lambda tile=tile: _start(launch, tile), warmup=5, rep=20)
        except OutOfResources:
            continue
    if not times:
        return _first_that_fits(launch, candidates)  # which raises Triton's own error
    return min(times, key=times.__getitem__)


def run(launch: Launch) -> None:
    """Launches on the current stream of the device where the tensors are."""
    if not launch.longest or not launch.slices:
        return
    device = launch.arguments["dout" if "dout" in launch.arguments else "q"].data.device
    family = family_of_device(device.index or 0)
    on_gpu = device.type == "cuda" and family != tiles.INTERPRETER
    with torch.cuda.device(device) if on_gpu else nullcontext():
        tuned = on_gpu and autotunes() and not torch.cuda.is_current_stream_capturing()
        kind = _kind(launch, device, tuned)
        tile = _chosen.get(kind)
        if tile is not None:
            _start(launch, tile)
            return
        columns = max(launch.constants.get("BLOCK_D", 0), launch.constants.get("BLOCK_DV", 0))
        choose = _fastest if tuned else _first_that_fits
        _chosen[kind] = choose(launch, tiles.choices(launch.kernel, family, columns))
