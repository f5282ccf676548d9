"""Validation of a call: shapes, dtypes, devices, options, with the messages of the library's API
layer.

It is independent of the backend, which rejects the options that it does not support.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .._c.options import Options
from ..errors import InvalidArgument, Unsupported

_MAX_ROWS = 2**30  # so that key positions, and bounds around them, fit in 32 bits


class Problem(NamedTuple):
    """A call's tensors, with contiguous last dimensions, and values derived from their shapes."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: Any  # Options
    batch: int
    heads: int
    heads_k: int
    d: int
    dv: int
    packed_q: bool
    packed_k: bool
    rows_k: int  # that a sequence of dense keys may have, or all packed ones
    longest_q: int
    longest_k: int
    scale: float
    left: Optional[int]  # window: keys before the query's position; None: no bound
    right: Optional[int]

    @property
    def rows_q(self) -> int:
        return self.q.shape[-3]

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.q.shape[:-1], self.dv)

    @property
    def lse_shape(self) -> tuple[int, ...]:
        return (self.heads, self.rows_q) if self.packed_q else (self.batch, self.heads, self.rows_q)

    @property
    def has_unused_rows(self) -> bool:
        """Whether there may be rows of queries or keys that belong to no sequence."""
        o = self.options
        given = (o.cu_seqlens_q, o.cu_seqlens_k, o.seqused_q, o.seqused_k, o.leftpad_k)
        return any(x is not None for x in given)


def refuse_options(o: Any, backend: str, absent: tuple[str, ...]) -> None:
    """Rejects the options named `absent`, and a number of splits."""
    for name in absent:
        value = getattr(o, name)
        if value is not None and (isinstance(value, Tensor) or value):
            words = (
                f"a tensor of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else repr(value)
            )
            raise Unsupported(
                f"{name} is {words}; backend {backend!r} does not take it, so it must be "
                f"{'None' if isinstance(value, Tensor) else '0'} (backend 'native' takes it)"
            )
    if o.num_splits not in (0, 1):
        raise Unsupported(
            f"num_splits is {o.num_splits}; backend {backend!r} does not split keys, so it must be "
            "0 or 1"
        )


def usable(x: Tensor) -> Tensor:
    """x, or a copy if its last dimension is not contiguous or it has torch's negative bit."""
    if x.is_neg():
        x = x.resolve_neg()
    far = any(
        abs(step) >= 2**23 for step in x.stride()[-3:-2]
    )  # a tile's offsets are 32-bit numbers
    return x.contiguous() if far or (x.shape[-1] > 1 and x.stride(-1) != 1) else x


def _shape(x: Tensor) -> str:
    return str(tuple(x.shape))


def check_shape(name: str, x: Tensor, shape: tuple[int, ...], dims: str) -> None:
    if tuple(x.shape) != shape:
        raise InvalidArgument(f"{name} has shape {_shape(x)}; it must be {dims} = {shape}")


def check_like(name: str, x: Tensor, q: Tensor, dtype: Optional[torch.dtype] = None) -> None:
    """Checks the dtype, by default that of q, and the device."""
    dtype = q.dtype if dtype is None else dtype
    if x.dtype != dtype:
        raise InvalidArgument(f"{name} has dtype {x.dtype}; it must be {dtype}")
    if x.device != q.device:
        raise InvalidArgument(f"{name} is on {x.device}; it must be on {q.device}, as q")


def _check_integers(name: str, x: Optional[Tensor], q: Tensor, count: int) -> Optional[Tensor]:
    if x is None:
        return None
    check_like(name, x, q, torch.int32)
    check_shape(name, x, (count,), "(b + 1,)" if name.startswith("cu_") else "(b,)")
    return x.contiguous()


def _check_heads(q: Tensor, k: Tensor, v: Tensor, backend: str, most: int) -> None:
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise Unsupported(f"q has dtype {q.dtype}; backend {backend!r} takes float16 and bfloat16")
    for name, x in (("k", k), ("v", v)):
        check_like(name, x, q)
    d, dv = q.shape[-1], v.shape[-1]
    if k.shape[-1] != d:
        raise InvalidArgument(f"k has shape {_shape(k)}; its head dimension must be that of q, {d}")
    if v.shape[:-1] != k.shape[:-1]:
        raise InvalidArgument(
            f"v has shape {_shape(v)}; but for its head dimension it must be that of k, {_shape(k)}"
        )
    for name, x in (("q", q), ("k", k)):
        if x.shape[-2] < 1:
            raise InvalidArgument(f"{name} has shape {_shape(x)}; it must have at least one head")
    for name, size in (("q", d), ("v", dv)):
        if not 1 <= size <= most:
            raise Unsupported(
                f"{name} has head dimension {size}; backend {backend!r} takes 1 to {most}"
            )
    if q.shape[-2] % k.shape[-2]:
        raise InvalidArgument(
            f"k has {k.shape[-2]} heads; the {q.shape[-2]} heads of q must be a multiple of that"
        )


def _check_numbers(o: Any) -> None:
    for name in ("window_left", "window_right"):
        if getattr(o, name) < -1:
            side = name.partition("_")[2]
            raise InvalidArgument(
                f"window has {side} bound {getattr(o, name)}; it must be -1 (no bound) or more"
            )
    if o.attention_chunk < 0:
        raise InvalidArgument(f"attention_chunk is {o.attention_chunk}; it must not be negative")
    if not 0 <= o.dropout_p < 1:
        raise InvalidArgument(f"dropout_p is {o.dropout_p}; it must be in [0, 1)")
    if o.softmax_scale is not None and not math.isfinite(o.softmax_scale):
        raise InvalidArgument(f"softmax_scale is {o.softmax_scale}; it must be finite")
    if not 0 <= o.softcap < math.inf:
        raise InvalidArgument(f"softcap is {o.softcap}; it must be 0 (none) or positive and finite")
    if o.dropout_p and o.rng_state is None:
        raise InvalidArgument(
            f"rng_state is None, but dropout_p is {o.dropout_p}; it must be given"
        )


def _longest(name: str, given: int, cu: Optional[Tensor], rows: int) -> int:
    """A bound on the lengths. On the CPU the lengths are read; on a GPU the caller's bound is not
    checked.
    """
    if given < 0:
        raise InvalidArgument(f"{name} is {given}; it must not be negative")
    if cu is None:
        if given not in (0, rows):
            raise InvalidArgument(
                f"{name} is {given}; without varlen sequences it must be 0 or the length, {rows}"
            )
        return rows
    if cu.is_cpu:
        found = _check_cu(name.replace("max_seqlen", "cu_seqlens"), cu.tolist(), rows)
        if 0 < given < found:
            raise InvalidArgument(
                f"{name} is {given}; it must be at least the longest sequence length, {found}"
            )
        return given or found
    if not given:
        raise InvalidArgument(
            f"{name} is 0; with varlen sequences on a GPU it must be the longest sequence length"
        )
    return given


def _check_cu(name: str, cu: list[int], rows: int) -> int:
    if cu[0] < 0:
        raise InvalidArgument(f"{name} begins with {cu[0]}; it must not be negative")
    for n, (a, b) in enumerate(zip(cu, cu[1:])):
        if b < a:
            raise InvalidArgument(
                f"{name} decreases from {a} to {b} at sequence {n}; it must not decrease"
            )
    if cu[-1] > rows:
        raise InvalidArgument(
            f"{name} ends with {cu[-1]}; it must be at most {rows}, the rows of the packed tensor"
        )
    return max((b - a for a, b in zip(cu, cu[1:])), default=0)


def _slopes(slopes: Optional[Tensor], q: Tensor, batch: int, heads: int) -> Optional[Tensor]:
    if slopes is None:
        return None
    check_like("alibi_slopes", slopes, q, torch.float32)
    if tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise InvalidArgument(
            f"alibi_slopes has shape {_shape(slopes)}; it must be ({heads},) or ({batch}, {heads})"
        )
    return slopes.resolve_neg().contiguous()


def _check_per_score(
    name: str,
    x: Optional[Tensor],
    q: Tensor,
    sizes: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """Mask and bias: (b|1, h|1, sq|1, sk|1)."""
    if x is None:
        return
    if x.dim() != 4:
        raise InvalidArgument(
            f"{name} has shape {_shape(x)} of {x.dim()} dimensions; it must be (b|1, h|1, sq|1, "
            "sk|1)"
        )
    for n, (size, whole) in enumerate(zip(x.shape, sizes)):
        if size not in (1, whole):
            raise InvalidArgument(
                f"{name} has shape {_shape(x)}; size {size} in dimension {n} must be 1 or {whole}"
            )
    if x.dtype not in dtypes:
        raise InvalidArgument(
            f"{name} has dtype {x.dtype}; it must be {' or '.join(map(str, dtypes))}"
        )
    check_like(name, x, q, x.dtype)


def read(
    q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], backend: str, most: int
) -> Problem:
    """Validates a call after the Python types of its options. `most` is the largest head
    dimension.
    """
    o = _with_lengths_of_pages(Options(*options), k)
    packed_q, packed_k = o.cu_seqlens_q is not None, o.cu_seqlens_k is not None
    if packed_k and not packed_q:
        raise InvalidArgument(
            "cu_seqlens_q is None, but cu_seqlens_k is given; packed keys require packed queries"
        )
    for name, x, packed in (("q", q, packed_q), ("k", k, packed_k), ("v", v, packed_k)):
        if x.dim() != (3 if packed else 4):
            dims = "(total, heads, head dimension)" if packed else "(b, s, heads, head dimension)"
            raise InvalidArgument(
                f"{name} has shape {_shape(x)} of {x.dim()} dimensions; it must be {dims}"
            )
    _check_heads(q, k, v, backend, most)
    _check_numbers(o)
    if packed_q and o.cu_seqlens_q.numel() < 1:
        raise InvalidArgument("cu_seqlens_q has shape (0,); it must be (b + 1,)")
    batch = o.cu_seqlens_q.numel() - 1 if packed_q else q.shape[0]
    cached = o.block_table is not None or o.cache_batch_idx is not None
    if not packed_k and not cached and k.shape[0] != batch:
        raise InvalidArgument(f"k has shape {_shape(k)}; its batch must be that of q, {batch}")
    q, k, v = usable(q), usable(k), usable(v)
    integers = {
        name: _check_integers(name, getattr(o, name), q, batch + name.startswith("cu_"))
        for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k")
    }
    o = o._replace(**integers, alibi_slopes=_slopes(o.alibi_slopes, q, batch, q.shape[-2]))
    o = o._replace(
        **{n: x.resolve_neg() for n in ("sinks", "bias") if (x := getattr(o, n)) is not None}
    )
    if o.sinks is not None:
        check_shape("sinks", o.sinks, (q.shape[-2],), "(heads,)")
        check_like(
            "sinks", o.sinks, q, o.sinks.dtype if o.sinks.dtype == torch.float32 else q.dtype
        )
    longest_q = _longest("max_seqlen_q", o.max_seqlen_q, o.cu_seqlens_q, q.shape[-3])
    o = _check_cache(o, q, k, batch)
    rows_k = k.shape[-3] * (1 if o.block_table is None else o.block_table.shape[1])
    longest_k = rows_k
    if o.block_table is None:
        longest_k = _longest("max_seqlen_k", o.max_seqlen_k, o.cu_seqlens_k, rows_k)
    sizes = (batch, q.shape[-2], longest_q, longest_k)
    _check_per_score("mask", o.mask, q, sizes, (torch.bool, torch.uint8))
    _check_per_score("bias", o.bias, q, sizes, (torch.float32, q.dtype))
    _check_used(o, q, rows_k, batch)
    _check_pages(o, k)
    for name, x in (("q", q), ("k", k)):
        if x.shape[-3] >= _MAX_ROWS:
            raise Unsupported(
                f"{name} has {x.shape[-3]} rows; backend {backend!r} takes fewer than {_MAX_ROWS}"
            )
    right = 0 if o.causal else o.window_right
    return Problem(
        q,
        k,
        v,
        options=o,
        batch=batch,
        heads=q.shape[-2],
        heads_k=k.shape[-2],
        d=q.shape[-1],
        dv=v.shape[-1],
        packed_q=packed_q,
        packed_k=packed_k,
        rows_k=rows_k,
        longest_q=longest_q,
        longest_k=longest_k,
        scale=q.shape[-1] ** -0.5 if o.softmax_scale is None else float(o.softmax_scale),
        left=None if o.window_left < 0 else min(o.window_left, _MAX_ROWS),
        right=None if right < 0 else min(right, _MAX_ROWS),
    )


def _with_lengths_of_pages(o: Any, k: Tensor) -> Any:
    """With a block table cu_seqlens_k only defines lengths, since pages are not packed rows."""
    if o.block_table is None or o.cu_seqlens_k is None:
        return o
    lengths = o.cu_seqlens_k.diff()
    if o.seqused_k is not None:
        lengths = lengths.minimum(o.seqused_k)
    return o._replace(cu_seqlens_k=None, seqused_k=lengths.to(torch.int32), max_seqlen_k=0)


def _check_cache(o: Any, q: Tensor, k: Tensor, batch: int) -> Any:
    """Checks the tables that locate keys; on the CPU also their entries."""
    table, index = o.block_table, o.cache_batch_idx
    if table is not None and index is not None:
        raise InvalidArgument("cache_batch_idx is given with block_table; one of them must be None")
    if table is not None:
        check_like("block_table", table, q, torch.int32)
        if table.dim() != 2 or table.shape[0] != batch:
            raise InvalidArgument(
                f"block_table has shape {_shape(table)}; it must have a row for each of {batch} "
                "sequences"
            )
        if k.shape[1] < 1:
            raise InvalidArgument(f"k has shape {_shape(k)}; a page must have at least one row")
        o = o._replace(block_table=table.contiguous())
    if index is not None:
        index = _check_integers("cache_batch_idx", index, q, batch)
        assert index is not None
        # On a GPU the entries are not read on the host; they are clamped to the cache.
        o = o._replace(cache_batch_idx=index.clamp(0, max(k.shape[0] - 1, 0)))
        if index.is_cpu and batch and not 0 <= int(index.min()) <= int(index.max()) < k.shape[0]:
            raise InvalidArgument(
                f"cache_batch_idx is {index.tolist()}; entries must be 0 to {k.shape[0] - 1}"
            )
    return o


def _check_pages(o: Any, k: Tensor) -> None:
    """Checks on the CPU that the used pages exist."""
    if o.block_table is None or not k.is_cpu:
        return
    size = k.shape[1]
    for n, pages in enumerate(o.block_table.tolist()):
        used = len(pages) if o.seqused_k is None else -(-int(o.seqused_k[n]) // size)
        for at, page in enumerate(pages[:used]):
            if not 0 <= page < k.shape[0]:
                raise InvalidArgument(
                    f"block_table is {page} at entry {at} of sequence {n}; it must be 0 to "
                    f"{k.shape[0] - 1}"
                )


def _check_used(o: Any, q: Tensor, rows_k: int, batch: int) -> None:
    """Checks lengths on the CPU, like the library; on a GPU backends clamp them to the tensors."""
    if not q.is_cpu:
        return

    def rows(cu: Optional[Tensor], length: int) -> list[int]:
        return [length] * batch if cu is None else cu.diff().tolist()

    of_q, of_k = rows(o.cu_seqlens_q, q.shape[-3]), rows(o.cu_seqlens_k, rows_k)
    for name, used, most in (("seqused_q", o.seqused_q, of_q), ("seqused_k", o.seqused_k, of_k)):
        for n, x in enumerate([] if used is None else used.tolist()):
            if not 0 <= x <= most[n]:
                raise InvalidArgument(
                    f"{name} is {x} for sequence {n}; it must be 0 to its length, {most[n]}"
                )
    keys = of_k if o.seqused_k is None else o.seqused_k.tolist()
    for n, x in enumerate([] if o.leftpad_k is None else o.leftpad_k.tolist()):
        if not 0 <= x <= keys[n]:
            raise InvalidArgument(
                f"leftpad_k is {x} for sequence {n}; it must be 0 to its number of keys, {keys[n]}"
            )
