"""The backend `triton`: validated calls on torch tensors, whose results are allocated or written to
the given tensors.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ..._c.options import Options, Saved
from ...errors import InvalidArgument, Unsupported
from .. import problem
from ..problem import Problem
from . import launch

NAME = "triton"
MAX_HEAD_DIM = 256
# Options without gradients, as in the library.
_CACHES = ("block_table", "cache_batch_idx")


def _check_device(q: Tensor) -> None:
    launch.kernels()  # raises without Triton
    if q.device.type == "cuda" or (q.device.type == "cpu" and launch.is_interpreted()):
        return
    if q.device.type == "cpu":
        raise Unsupported(
            "q is on cpu; backend 'triton' runs on GPUs. For tests Triton can interpret its "
            "kernels on the CPU: set "
            "TRITON_INTERPRET=1 before Python starts; or choose backend 'native'"
        )
    raise Unsupported(f"q is on {q.device}; backend 'triton' takes cuda (also ROCm's) tensors")


def _check_rng_state(o: Any) -> None:
    x = o.rng_state
    if o.dropout_p and (x.dtype != torch.int64 or tuple(x.shape) != (2,)):
        raise InvalidArgument(
            f"rng_state is {x.dtype} of shape {tuple(x.shape)}; it must be int64 of shape (2,): "
            "seed and offset"
        )


def _read(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> Problem:
    _check_device(q)
    p = problem.read(q, k, v, options, NAME, MAX_HEAD_DIM)
    problem.refuse_options(p.options, NAME, ("k_descale", "v_descale"))
    _check_rng_state(p.options)
    return p


check = _read


def _written(name: str, x: Optional[Tensor], p: Problem, shape: tuple[int, ...]) -> Tensor:
    """A result: the caller's tensor, or a new one. Unused rows are 0."""
    if x is None:
        make = torch.zeros if p.has_unused_rows else torch.empty
        return make(shape, dtype=p.q.dtype, device=p.q.device)
    problem.check_like(name, x, p.q)
    problem.check_shape(name, x, shape, "the shape of its input")
    if x.is_neg():
        raise InvalidArgument(
            f"{name} has torch's negative bit, but is written to; it must be resolved "
            "(resolve_neg) before"
        )
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise InvalidArgument(
            f"{name} has stride {x.stride(-1)} in its last dimension; it must be 1"
        )
    if p.has_unused_rows:
        x.zero_()
    return x


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    want_weights: bool,
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """(out, lse, weights), the latter only if requested."""
    p = _read(q, k, v, options)
    out = _written("out", out, p, p.out_shape)
    lse = torch.empty(p.lse_shape, dtype=torch.float32, device=q.device)
    if p.has_unused_rows:
        lse.fill_(torch.inf)
    launch.run(launch.forward_launch(p, out, lse))
    weights = None
    if want_weights:
        shape = (p.batch, p.heads, p.longest_q, p.longest_k)
        weights = torch.zeros(shape, dtype=torch.float32, device=q.device)
        launch.run(launch.weights_launch(p, weights, *_statistics(p, lse)))
    return out, lse, weights


def backward(
    saved: Saved,
    options: tuple[Any, ...],
    wanted: tuple[bool, ...],
    into: tuple[Optional[Tensor], ...],
) -> list[Optional[Tensor]]:
    """Gradients of q, k, v, sinks, bias and slopes: the requested ones are allocated, those in
    `into` written.
    """
    dout, q, k, v, out, lse, dlse = saved
    refuse_missing_gradients(q, v, options)
    p = _read(q, k, v, options)
    for name, x in (("dout", dout), ("out", out)):
        problem.check_like(name, x, p.q)
        problem.check_shape(name, x, p.out_shape, "that of q with the columns of v")
    problem.check_like("lse", lse, p.q, torch.float32)
    problem.check_shape(
        "lse", lse, p.lse_shape, "(heads, total)" if p.packed_q else "(b, heads, sq)"
    )
    if dlse is not None:
        problem.check_like("dlse", dlse, p.q, torch.float32)
        problem.check_shape("dlse", dlse, p.lse_shape, "that of lse")
    given = (*into, *(None,) * (6 - len(into)))
    requested = [want or x is not None for want, x in zip((*wanted, *(False,) * 6), given)]
    for at, name in ((3, "sinks"), (4, "bias"), (5, "alibi_slopes")):
        if requested[at] and getattr(p.options, name) is None:
            raise InvalidArgument(f"d{name} is requested, but {name} is None; {name} must be given")
    of_q, of_keys = requested[0] or requested[4] or requested[5], requested[1] or requested[2]
    dq = _written("dq", given[0], p, tuple(p.q.shape)) if of_q else None
    dk = _written("dk", given[1], p, tuple(p.k.shape)) if of_keys else None
    dv = _written("dv", given[2], p, tuple(p.v.shape)) if of_keys else None
    lse = lse.resolve_neg().contiguous()
    delta = torch.zeros_like(lse) if p.has_unused_rows else torch.empty_like(lse)
    tilt = torch.zeros_like(lse) if requested[5] else None
    every = None
    if requested[4]:  # of each score; summed over the broadcast dimensions of the bias
        shape = (p.batch, p.heads, p.longest_q, p.longest_k)
        every = torch.zeros(shape, dtype=torch.float32, device=q.device)
    statistics = _statistics(p, lse)
    inputs = (problem.usable(dout), problem.usable(out), *statistics, delta)
    preprocess, *main = launch.backward_launches(p, *inputs, dq, dk, dv, tilt, every)
    launch.run(preprocess)
    if dlse is not None:  # the lse of fully masked rows is constant
        delta -= dlse.masked_fill(lse == torch.inf, 0.0)
    for each in main:
        launch.run(each)
    of_sinks = _of_sinks(p, *statistics, delta) if requested[3] else None
    of_bias = (
        None if every is None else every.sum_to_size(p.options.bias.shape).to(p.options.bias.dtype)
    )
    found = [dq, dk, dv, of_sinks, of_bias, _of_slopes(p, tilt)]
    results = [
        x if x is None or y is None or n < 3 else y.copy_(x)
        for n, (x, y) in enumerate(zip(found, given))
    ]
    return [x if want else None for x, want in zip(results, requested)]


def _statistics(p: Problem, lse: Tensor) -> tuple[Tensor, Tensor]:
    """(max, log2 of the sum) of each row, or (lse, 0) where that is equally accurate."""
    highest, log_total = torch.full_like(lse, torch.inf), torch.zeros_like(lse)
    launch.run(launch.statistics_launch(p, lse, highest, log_total))
    return highest, log_total


def _of_sinks(p: Problem, highest: Tensor, log_total: Tensor, delta: Tensor) -> Tensor:
    """The gradient of the sinks: the weight of a sink is exp(sink - max) / sum, and its value 0."""
    sinks = p.options.sinks.float()[:, None]
    dims = (1,) if p.packed_q else (0, 2)
    return -((sinks - highest).exp() * (-log_total).exp2() * delta).sum(dims)


def _of_slopes(p: Problem, tilt: Optional[Tensor]) -> Optional[Tensor]:
    """Sums the shares of the queries per head, or per sequence and head."""
    if tilt is None:
        return None
    slopes, cu = p.options.alibi_slopes, p.options.cu_seqlens_q
    if slopes.dim() == 1:
        return tilt.sum(1 if p.packed_q else (0, 2))
    if not p.packed_q:
        return tilt.sum(2)
    sums = torch.nn.functional.pad(tilt.double().cumsum(1), (1, 0))[:, cu.long()]
    return sums.diff(dim=1).T.float()


def refuse_missing_gradients(q: Tensor, v: Tensor, options: tuple[Any, ...]) -> None:
    """Rejects KV caches, the only options without gradients."""
    o = Options(*options)
    for name in _CACHES:
        if getattr(o, name) is not None:
            raise Unsupported(
                f"{name} is given; there are no gradients with it, so it must be None"
            )
