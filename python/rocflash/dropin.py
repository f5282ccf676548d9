"""The private interface for the distributions flash-attn, flash-attn-3 and flash-attn-4, which use
nothing else of this package.

It maps flash_attn's conventions to `rocflash.attention`. Other packages must not import it: it
changes together with these distributions.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ._c import choice
from ._c.choice import backend, use_backend
from ._c.options import Options, packed, window_pair
from ._c.shapes import lse_shape, out_shape
from ._torch.attention import attention_of_tensors, draw_rng_state
from ._torch.autograd import (
    Backward,
    define,
    register_fake,
    register_operators,
    with_lengths,
)
from ._torch.calls import backward, combine, forward, refuse_missing_gradients
from ._torch.decode import attention_with_kvcache, join_qv, side_by_side
from ._torch.options import check_number, check_options, check_tensor, real
from ._torch.plan import GRADIENTS, RESULTS
from ._torch.rotary import check_tables, rotate, rotate_in_place
from ._torch.route import OPERATOR, route
from ._torch.weights import drops_nothing, signed_softmax, softmax_by_heads
from .errors import InvalidArgument, Unsupported

__all__ = [
    "GRADIENTS",
    "RESULTS",
    "Backward",
    "InvalidArgument",
    "Options",
    "Unsupported",
    "as_int",
    "attend",
    "attention_of_tensors",
    "attention_with_kvcache",
    "backend",
    "backward",
    "check_hint",
    "check_options",
    "check_pack_gqa",
    "check_tables",
    "check_tensor",
    "combine",
    "define",
    "draw_rng_state",
    "drops_nothing",
    "forward",
    "host_rng_state",
    "join_qv",
    "lse_shape",
    "needs_operator",
    "options_of",
    "out_shape",
    "refuse_missing_gradients",
    "register_fake",
    "register_operators",
    "rng_state_on",
    "rotate",
    "rotate_in_place",
    "side_by_side",
    "signed_softmax",
    "softmax_by_heads",
    "split_packed",
    "use_backend",
    "whole",
    "window_pair",
    "with_lengths",
]


def rng_state_on(seeds: Optional[Tensor], device: torch.device) -> Tensor:
    """Seed and offset as in upstream: on the device of q; zeros without dropout.

    The tensor also stores its values on the host, so that backward need not synchronize with a GPU.
    """
    if seeds is None:
        return torch.zeros(2, dtype=torch.int64, device=device)
    if device.type == "cpu":
        return seeds
    placed = torch.empty(2, dtype=torch.int64, device=device)
    for at, number in enumerate(seeds.tolist()):
        placed[at].fill_(number)  # numbers go with the launch: no copy, and a graph may capture it
    placed._rocflash_on_host = seeds  # type: ignore[attr-defined]
    return placed


def host_rng_state(rng_state: Optional[Tensor]) -> Optional[Tensor]:
    """The host values stored by rng_state_on, else the tensor itself."""
    return getattr(rng_state, "_rocflash_on_host", rng_state)


def check_hint(name: str, value: Any) -> None:
    """Validates a hint, which affects how a result is computed, never the result."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name} is {value!r}; it must be an integer, 0 or more")


def check_pack_gqa(value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"pack_gqa is {value!r}; it must be None, True or False")


def as_int(name: str, value: Any) -> int:
    """An int from an int or a tensor of one element, as callers of flash_attn pass lengths."""
    if type(value) is int:
        return value
    if value is None:
        return 0
    if isinstance(value, (bool, float, str, bytes)):
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    if isinstance(value, (int, torch.SymInt)):
        return value  # type: ignore[return-value]  # a SymInt is used as an int
    try:
        return int(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} is {value!r}; it must be an integer") from error


whole = as_int  # its name in earlier versions


def split_packed(name: str, x: Any, count: int, dim: int, layout: str) -> tuple[Tensor, ...]:
    """The tensors inside a packed qkv or kv, as views; torch stacks their gradients again."""
    check_tensor(name, x)
    if x.dim() != dim + 3 or x.shape[dim] != count:
        raise InvalidArgument(f"{name} has shape {tuple(x.shape)}; it must be {layout}")
    return x.unbind(dim)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Any,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    return_attn_probs: bool,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Any = 0,
    max_seqlen_k: Any = 0,
    sinks: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    attention_chunk: int = 0,
    block_table: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    num_splits: int = 0,
    operator: Any = None,
) -> Any:
    """One FA2 or FA3 function: out, or (out, lse, S_dmask) with return_attn_probs."""
    left, right = (-1, -1) if window_size is None else window_pair(window_size, "window_size")
    if alibi_slopes is not None:
        check_tensor("alibi_slopes", alibi_slopes)
    if softmax_scale is not None and type(softmax_scale) is not float:
        softmax_scale = real("softmax_scale", softmax_scale)
    with_weights = False
    if return_attn_probs:
        check_number("dropout_p", dropout_p, float)
        with_weights = dropout_p > 0
    options = packed(
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        block_table=block_table,
        k_descale=k_descale,
        v_descale=v_descale,
        max_seqlen_q=as_int("max_seqlen_q", max_seqlen_q),
        max_seqlen_k=as_int("max_seqlen_k", max_seqlen_k),
        causal=causal,
        window_left=left,
        window_right=right,
        attention_chunk=attention_chunk,
        softmax_scale=softmax_scale,
        softcap=softcap,
        dropout_p=dropout_p,
        deterministic=deterministic,
        num_splits=num_splits,
        backend=choice.for_operator(),
    )
    return_probs = bool(return_attn_probs)
    out, lse, weights = attention_of_tensors(
        q, k, v, options, None, return_probs, with_weights, operator
    )
    if not return_probs:
        return out
    return out, lse, signed_softmax(weights, q.dtype) if with_weights else q.new_empty(0)


def needs_operator(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a compiler, a mode or a meta tensor needs an operator."""
    return route(q, k, v, None) == OPERATOR or q.is_meta


def options_of(**given: Any) -> Any:
    """Options with the context's backend, for calls below autograd.

    Operators of a traced graph read the context when they run.
    """
    return Options(backend=choice.for_operator(), **given)
