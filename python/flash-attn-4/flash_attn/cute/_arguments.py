"""Conversion of FlashAttention-4's arguments to the library's, and the rejection of those that it
does not support.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from rocflash.dropin import InvalidArgument, Unsupported, as_int, check_hint, check_pack_gqa
from rocflash.dropin import check_tensor as check_tensor

_MODS = (
    "functions for CuTe do not run here; supported are softcap, causal, window_size and "
    "learnable_sink, and rocflash.attention has bias, mask and alibi_slopes"
)
_BLOCKS = (
    "lists of blocks are not supported; supported are causal and window_size, whose masked blocks "
    "are skipped, and the mask of rocflash.attention"
)
# What is supported instead of an argument.
_REASONS = {
    "score_mod": _MODS,
    "score_mod_bwd": _MODS,
    "mask_mod": _MODS,
    "aux_tensors": _MODS,
    "aux_scalars": _MODS,
    "block_sparse_tensors": _BLOCKS,
    "block_sparse_tensors_bwd": _BLOCKS,
    "gather_kv_indices": (
        "keys gathered per query are not supported; supported are page_table, one per sequence, "
        "and seqused_k"
    ),
    "q_descale": "fp8 is not supported; supported are float16, bfloat16 and float32",
    "k_descale": "fp8 is not supported; supported are float16, bfloat16 and float32",
    "v_descale": "fp8 is not supported; supported are float16, bfloat16 and float32",
    "virtual_batch_idx": "results of splits are combined in the order of the batch",
}


def refuse(**given: Any) -> None:
    """Rejects arguments of features that the library does not have."""
    for name, value in given.items():
        if value is not None:
            raise Unsupported(f"{name} is given; it must be None: {_REASONS[name]}")


def check_hints(pack_gqa: Any, **hints: Any) -> None:
    """Validates what only affects the scheduling of upstream's kernels."""
    check_pack_gqa(pack_gqa)
    for name, value in hints.items():
        if value is not None:
            check_hint(name, value)


class SchedulerMetadataTensorsTorch(NamedTuple):
    """Upstream's scheduler metadata. All of it is None: the library plans each call."""

    num_m_blocks_ptr: Optional[Tensor] = None
    num_splits_dynamic_ptr: Optional[Tensor] = None
    varlen_batch_idx_ptr: Optional[Tensor] = None
    num_nheads_in_l2_ptr: Optional[Tensor] = None
    tile_count_semaphore: Optional[Tensor] = None


def check_metadata(metadata: Any, disabled: Any) -> None:
    if metadata is not None and not isinstance(metadata, SchedulerMetadataTensorsTorch):
        raise TypeError(
            f"scheduler_metadata has type {type(metadata).__name__}; it must be what "
            "get_scheduler_metadata returns"
        )
    if not isinstance(disabled, bool):
        raise InvalidArgument(f"disable_scheduler_metadata is {disabled!r}; it must be a bool")


def window_of(window_size: Any, causal: Any) -> tuple[int, int]:
    """The library's bounds, -1 for none, of upstream's, None for none.

    As in upstream, causal replaces the right bound, and bounds with a negative sum are none.
    """
    try:
        left, right = (None, None) if window_size is None else window_size
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"window_size is {window_size!r}; it must be a pair (left, right), None for no bound"
        ) from error
    sides = [None if x is None else as_int("window_size", x) for x in (left, right)]
    if causal:
        sides[1] = 0
    if sides[0] is not None and sides[1] is not None and sides[0] + sides[1] < 0:
        sides = [None, 0 if causal else None]
    for x in sides:
        if x is not None and x < 0:
            raise InvalidArgument(
                f"window_size is {window_size!r}; a bound must be 0 or more, or None for none"
            )
    # Causal is an option of its own.
    return -1 if sides[0] is None else sides[0], -1 if causal or sides[1] is None else sides[1]


def sinks_of(learnable_sink: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    """Sinks in a dtype that the library takes: that of q, or f32."""
    if learnable_sink is None:
        return None
    check_tensor("learnable_sink", learnable_sink)
    if learnable_sink.dtype in (dtype, torch.float32):
        return learnable_sink
    if learnable_sink.dtype not in (torch.float16, torch.bfloat16):
        raise InvalidArgument(
            f"learnable_sink has dtype {learnable_sink.dtype}; it must be float16, bfloat16 or "
            "float32"
        )
    return learnable_sink.float()


def lse_of_caller(lse: Tensor) -> Tensor:
    """The lse of rows without a key is -inf here and +inf in the library."""
    return torch.where(lse == torch.inf, -torch.inf, lse)


def lse_of_library(lse: Tensor) -> Tensor:
    return torch.where(lse == -torch.inf, torch.inf, lse)
