"""The torch implementation of `rocflash.attention` and of the functions based on it.

It runs above autograd and the operators: selection of the path, autocast, the seed of dropout, and
lengths that the caller did not give.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .._c.choice import FROM_CONTEXT
from .._c.options import AT, Options
from ..errors import InvalidArgument
from . import autograd, calls, fast
from .options import check_options, check_tensor
from .route import GRADIENTS, INFER, OPERATOR, autocasting, route

_LOW, _HIGH = -(2**63), 2**63 - 1
_DROPOUT, _SINKS, _BIAS, _SLOPES, _CU_Q, _CU_K = (
    AT[name]
    for name in ("dropout_p", "sinks", "bias", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k")
)


def draw_rng_state(generator: Optional[torch.Generator] = None) -> Tensor:
    """Seed and offset for one dropout pattern, from torch's CPU generator: manual_seed repeats
    it.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator has type {type(generator).__name__}; it must be a torch.Generator"
        )
    if generator is not None and generator.device.type != "cpu":
        raise InvalidArgument(f"generator is on {generator.device}; it must be a CPU generator")
    return torch.randint(_LOW, _HIGH, (2,), generator=generator, dtype=torch.int64, device="cpu")


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    if device not in ("cpu", "cuda"):  # the library rejects others
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts f32 inputs under autocast, as for torch's attention."""
    dtype = _autocast_dtype(tensors[0].device.type)
    if dtype is None:
        return tensors
    return tuple(x.to(dtype) if x.dtype is torch.float32 else x for x in tensors)


def _completed(
    q: Tensor,
    options: tuple[Any, ...],
    generator: Optional[torch.Generator],
    return_weights: bool,
) -> tuple[Any, ...]:
    """The options with a seed for dropout, and with lengths that the library does not compute."""
    o = Options(*options)
    if o.dropout_p and o.rng_state is None:
        o = o._replace(rng_state=draw_rng_state(generator))
    if return_weights or q.is_cuda:  # the library does not look into a GPU's lengths
        return autograd.with_lengths(q, tuple(o))
    return tuple(o)


def attention_of_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    generator: Optional[torch.Generator] = None,
    return_lse: bool = True,
    return_weights: bool = False,
    operator: Any = None,
) -> tuple[Tensor, Any, Any]:
    """(out, lse, weights), None or empty if not requested. `options` are those of `Options`.

    `operator` replaces rocflash::forward where an operator is needed.
    """
    way = route(q, k, v, options[_SINKS], options[_BIAS], options[_SLOPES])
    casting = way == OPERATOR or autocasting()
    if way == INFER and not (return_lse or return_weights or casting):
        out = fast.infer(q, k, v, options)
        if out is not None:
            return out, None, None
    if getattr(q, "is_meta", False) and all(getattr(x, "is_meta", False) for x in (k, v)):
        way, casting = OPERATOR, True  # no memory to compute with, but shapes: the operators' fakes
    if way == OPERATOR:  # of other calls, the plan checks the same
        check_tensor("q", q)
        check_tensor("k", k)
        check_tensor("v", v)
        check_options(options)
    if casting:
        q, k, v = autocast(q, k, v)
    if way == OPERATOR and operator is not None:
        found = operator(q, k, v, options, return_weights)
        if found is not None:
            return found
    if (
        options[_DROPOUT]
        or return_weights
        or (q.is_cuda and not (options[_CU_Q] is None and options[_CU_K] is None))
    ):
        options = _completed(q, options, generator, return_weights)
    if way == OPERATOR:
        if operator is not None:
            return operator(q, k, v, options, return_weights)
        if options[-1] == FROM_CONTEXT:
            return torch.ops.rocflash.forward_in_context(q, k, v, *options, return_weights)[:3]
        return torch.ops.rocflash.forward(q, k, v, *options, return_weights)
    if options[-1] == FROM_CONTEXT:  # a compiler traced as far as here and gave up
        options = autograd.with_current_backend(options)
    if way == INFER:
        out, lse, weights = calls.infer(q, k, v, options, return_lse, return_weights)
        return out, lse, weights
    if way == GRADIENTS:
        results: Any = autograd.attend_eagerly(q, k, v, options, return_lse, return_weights)
        return results
    results = autograd.attend_in_transforms(q, k, v, options, return_weights)
    return results
