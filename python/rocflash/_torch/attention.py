"""The torch side of `rocflash.attention` and of every function that ends there.

What is here happens above autograd and the operators: the way is named, autocast, the drawing of
dropout's seed, lengths that a GPU's caller did not give.
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
    """Seed and offset for one dropout pattern, from torch's CPU generator: manual_seed repeats it."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: {type(generator).__name__}; it must be a torch.Generator")
    if generator is not None and generator.device.type != "cpu":
        raise InvalidArgument(f"generator: is on {generator.device}; it must be a CPU generator")
    return torch.randint(_LOW, _HIGH, (2,), generator=generator, dtype=torch.int64, device="cpu")


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    if device not in ("cpu", "cuda"):  # the library will say what it thinks of others
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts f32 inputs under autocast, as torch does for its own attention."""
    dtype = _autocast_dtype(tensors[0].device.type)
    if dtype is None:
        return tensors
    return tuple(x.to(dtype) if x.dtype is torch.float32 else x for x in tensors)


def _longest(name: str, cu_seqlens: Any) -> int:
    check_tensor(name, cu_seqlens)
    return int(cu_seqlens.diff().max()) if cu_seqlens.numel() > 1 else 0


def _completed(
    q: Tensor,
    options: tuple[Any, ...],
    generator: Optional[torch.Generator],
    return_weights: bool,
) -> tuple[Any, ...]:
    """The options with a seed for dropout, and with lengths where the library does not find them."""
    o = Options(*options)
    if o.dropout_p and o.rng_state is None:
        o = o._replace(rng_state=draw_rng_state(generator))
    if return_weights or q.is_cuda:  # the library does not look into a GPU's lengths
        least = 1 if q.is_cuda else 0
        if o.cu_seqlens_q is not None and not o.max_seqlen_q:
            o = o._replace(max_seqlen_q=max(least, _longest("cu_seqlens_q", o.cu_seqlens_q)))
        if o.cu_seqlens_k is not None and not o.max_seqlen_k:
            o = o._replace(max_seqlen_k=max(least, _longest("cu_seqlens_k", o.cu_seqlens_k)))
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
    """(out, lse, weights), None or empty where not asked for. `options` are those of `Options`.

    `operator` is called where something wants to see one, in place of rocflash::forward.
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
        return calls.infer(q, k, v, options, return_lse, return_weights)
    if way == GRADIENTS:
        return autograd.attend_eagerly(q, k, v, options, return_lse, return_weights)
    return autograd.attend_in_transforms(q, k, v, options, return_weights)
