"""The private door for the distributions flash-attn and flash-attn-3: all that they use of this one.

What is defined here are flash_attn's habits in terms of `rocflash.attention`. Nobody else should import it:
it changes together with them.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ._c import choice
from ._c.choice import backend, use_backend
from ._c.options import Options, packer, window_pair
from ._c.shapes import lse_shape, out_shape
from ._torch.attention import attention_of_tensors, draw_rng_state
from ._torch.autograd import Backward, define, register_fake, register_operators
from ._torch.calls import backward, combine, forward, refuse_missing_gradients
from ._torch.decode import attention_with_kvcache, join_qv, side_by_side
from ._torch.options import check_number, check_options, check_tensor, real
from ._torch.plan import GRADIENTS
from ._torch.rotary import check_tables, turn
from ._torch.route import OPERATOR, route
from ._torch.weights import drops_nothing, signed_softmax, softmax_by_heads
from .errors import InvalidArgument, Unsupported

__all__ = [
    "GRADIENTS",
    "Backward",
    "InvalidArgument",
    "Options",
    "Unsupported",
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
    "is_watched",
    "join_qv",
    "lse_shape",
    "options_of",
    "out_shape",
    "refuse_missing_gradients",
    "register_fake",
    "register_operators",
    "rng_state_on",
    "side_by_side",
    "signed_softmax",
    "softmax_by_heads",
    "split_packed",
    "turn",
    "use_backend",
    "whole",
    "window_pair",
]


def rng_state_on(seeds: Optional[Tensor], device: torch.device) -> Tensor:
    """Seed and offset as upstream returns them: on the device of q; zeros where nothing is dropped.

    The tensor remembers its values, so that backward need not wait for a GPU to tell them.
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
    """What rng_state_on remembers, else the tensor itself."""
    return getattr(rng_state, "_rocflash_on_host", rng_state)


def check_hint(name: str, value: Any) -> None:
    """A hint steers how a result is computed, never what it is; still, it must make sense."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name}: {value!r}; it must be an integer, 0 or more")


def check_pack_gqa(value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"pack_gqa: {value!r}; it must be None, True or False")


def whole(name: str, value: Any) -> int:
    """An int from an int or a tensor of one element, as callers of flash_attn pass lengths."""
    if type(value) is int:
        return value
    if value is None:
        return 0
    if isinstance(value, (bool, float, str, bytes)):
        raise TypeError(f"{name}: {value!r}; it must be an integer")
    if isinstance(value, (int, torch.SymInt)):
        return value
    try:
        return int(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: {value!r}; it must be an integer") from error


def split_packed(name: str, x: Any, count: int, dim: int, layout: str) -> tuple[Tensor, ...]:
    """The tensors inside a packed qkv or kv, as views; torch stacks their gradients again."""
    check_tensor(name, x)
    if x.dim() != dim + 3 or x.shape[dim] != count:
        raise InvalidArgument(f"{name}: shape {tuple(x.shape)}; it must be {layout}")
    return x.unbind(dim)


_packed = packer(
    "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "alibi_slopes", "sinks", "block_table",
    "max_seqlen_q", "max_seqlen_k", "causal", "window_left", "window_right", "attention_chunk", "softmax_scale",
    "softcap", "dropout_p", "deterministic", "num_splits", "backend",
)


def attend(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: Optional[float], causal: bool,
    window_size: Any, softcap: float, alibi_slopes: Optional[Tensor], deterministic: bool,
    return_attn_probs: bool, cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Any = 0, max_seqlen_k: Any = 0, sinks: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None, attention_chunk: int = 0,
    block_table: Optional[Tensor] = None, num_splits: int = 0, operator: Any = None,
) -> Any:
    """One FA2 or FA3 function: out, or (out, lse, S_dmask) when probabilities are asked for."""
    left, right = (-1, -1) if window_size is None else window_pair(window_size, "window_size")
    if alibi_slopes is not None:
        check_tensor("alibi_slopes", alibi_slopes)
    if softmax_scale is not None and type(softmax_scale) is not float:
        softmax_scale = real("softmax_scale", softmax_scale)
    with_weights = False
    if return_attn_probs:
        check_number("dropout_p", dropout_p, float)
        with_weights = dropout_p > 0
    options = _packed(
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, alibi_slopes, sinks, block_table,
        whole("max_seqlen_q", max_seqlen_q), whole("max_seqlen_k", max_seqlen_k), causal, left, right,
        attention_chunk, softmax_scale, softcap, dropout_p, deterministic, num_splits, choice.for_operator(),
    )
    asked = bool(return_attn_probs)
    out, lse, weights = attention_of_tensors(q, k, v, options, None, asked, with_weights, operator)
    if not asked:
        return out
    return out, lse, signed_softmax(weights, q.dtype) if with_weights else q.new_empty(0)


def is_watched(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a compiler, a mode or a tensor without memory wants to see an operator."""
    return route(q, k, v, None) == OPERATOR or q.is_meta


def options_of(**given: Any) -> Any:
    """Options with the context's backend, for calls below autograd.

    Where a compiler traces, operators ask the context when they run.
    """
    return Options(backend=choice.for_operator(), **given)
