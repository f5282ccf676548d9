"""Context-parallel attention for Hugging Face transformers, by its registry.

>>> import rocflash.integrations.transformers_distributed as bridge
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation=bridge.register())
>>> with rocflash.distributed.context_parallel(group, buffers=[tokens, targets, position_ids],
buffer_seq_dims=[1, 1, 1]): ...     model(input_ids=tokens, position_ids=position_ids,
shift_labels=targets).loss.backward()

Inside the block attention is over the rows of all ranks; outside it is that of
`rocflash.integrations.transformers`. No mask is created, since its size would be quadratic in the
length of the sequence. Causal masking and sliding windows use positions, packed batches use
cu_seq_lens of the whole batch, and padding is one row of keys per sequence.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from rocflash.distributed import attention, unshard_sequence
from rocflash.distributed.context import current
from rocflash.errors import InvalidArgument, Unsupported

from . import transformers as undivided

NAME = "roc_distributed"

__all__ = ["NAME", "attention_forward", "register"]


def register(name: str = NAME) -> str:
    """Registers context-parallel attention as `attn_implementation=name`; returns the name."""
    return undivided.register_under(name, attention_forward, _mask)


def _mask(*arguments: Any, attention_mask: Optional[Tensor] = None, **named: Any) -> Any:
    """Inside a block only padding, (b, 1, 1, keys of the whole sequence): non-consecutive positions
    do not imply a packed batch there. All ranks exchange a flag, since padding may be on some ranks
    only.
    """
    if current() is None:
        from transformers.masking_utils import sdpa_mask

        mask: Any = sdpa_mask
        return mask(*arguments, attention_mask=attention_mask, **named)
    if named.get("use_vmap"):
        raise Unsupported(
            "attention_mask comes from a mask function of the model; inside context_parallel that "
            "is not supported"
        )
    return None if attention_mask is None else _padding(attention_mask)


def _padding(mask: Tensor) -> Optional[Tensor]:
    """Padding from this rank's part of a mask (b, rows), or from the whole mask; None without
    padding.
    """
    context = current()
    assert context is not None
    if mask.dim() != 2:
        raise Unsupported(
            f"attention_mask has shape {tuple(mask.shape)}; inside context_parallel it must be (b, "
            "rows)"
        )
    rows = None if context.length is None else context.position_ids().shape[1]
    if rows is None or mask.shape[1] == rows:
        whole = unshard_sequence(
            mask.to(torch.uint8), context.group, 1, context.layout, length=context.length
        )
    elif mask.shape[1] == context.length:
        whole = mask
    else:
        raise InvalidArgument(
            f"attention_mask has {mask.shape[1]} columns; inside context_parallel it must have "
            f"{rows}, this rank's "
            f"rows, or {context.length}, all"
        )
    return None if bool(whole.all()) else whole.bool()[:, None, None]


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    is_causal: Optional[bool] = None,
    s_aux: Optional[Tensor] = None,
    output_attentions: Optional[bool] = None,
    **kwargs: Any,
) -> tuple[Tensor, Optional[Tensor]]:
    """(out (b, rows, h, d), None) for query (b, h, rows, d), key and value (b, hk, rows, d)."""
    context = current()
    if context is None:
        return undivided.attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
            is_causal=is_causal,
            s_aux=s_aux,
            output_attentions=output_attentions,
            **kwargs,
        )
    if attention_mask is not None and (
        attention_mask.dim() != 4 or attention_mask.shape[1:3] != (1, 1)
    ):
        raise Unsupported(
            f"attention_mask has shape {tuple(attention_mask.shape)}; inside context_parallel it "
            "must be padding, "
            "(b, 1, 1, keys)"
        )
    if output_attentions:
        raise Unsupported(
            "output_attentions is True; inside context_parallel it must be False, since no rank "
            "has the weights"
        )
    if getattr(getattr(module, "config", None), "attention_chunk_size", None):
        raise Unsupported(
            "attention_chunk_size is set by the model; inside context_parallel chunks are not "
            "supported"
        )
    if query.shape[2] != key.shape[2]:
        raise Unsupported(
            f"past_key_values has {key.shape[2]} keys for {query.shape[2]} queries; inside "
            "context_parallel it must be "
            "empty: rocflash.distributed.decode supports caches"
        )
    undivided.check_sliding_window(sliding_window)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    options: dict[str, Any] = context.options()
    packed = undivided._packed_lengths(kwargs)
    if packed is not None:
        if q.shape[0] != 1:
            raise InvalidArgument(
                f"cu_seq_lens_q is given, but the batch is {q.shape[0]}; it must be 1"
            )
        q, k, v = q[0], k[0], v[0]
        options["cu_seqlens_q"], options["cu_seqlens_k"] = packed[:2]
    if sliding_window is not None:
        options["window"] = (sliding_window - 1, 0 if causal else sliding_window - 1)
    out = attention(
        q,
        k,
        v,
        causal=causal,
        softmax_scale=scaling,
        softcap=softcap or 0.0,
        sinks=s_aux if s_aux is None or s_aux.dtype == q.dtype else s_aux.float(),
        dropout_p=dropout,
        mask=attention_mask,
        **options,
    )
    return (out if packed is None else out[None]), None
