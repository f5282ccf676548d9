"""Attention for Hugging Face transformers, by its own registration.

>>> import rocflash.integrations.transformers as bridge
>>> bridge.register()
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation=bridge.NAME)

Masks are created as for torch's attention: none if causal suffices, else boolean (b, 1, sq, sk), so
every pattern of transformers is supported. Packed batches with cu_seq_lens need no mask.

`register("rocflash")` is transformers' own code for flash attention over the installed flash_attn:
packed batches, continuous batching and sinks, without kernels of its hub. So is
`register("flash_attention_2")`, for code that hardcodes that name (transformers_flash.py).
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

import rocflash
from rocflash._torch.options import as_int32
from rocflash.errors import InvalidArgument

# transformers interprets every name with "flash" as a kernel of flash_attn, without masks.
NAME = "roc_attention"

__all__ = ["NAME", "attention_forward", "register"]


def register(name: str = NAME) -> str:
    """Registers this library as `attn_implementation=name`; returns the name."""
    from . import transformers_flash

    return (
        transformers_flash.serve(name)
        if name in (transformers_flash.NAME, transformers_flash.OWN_NAME)
        else register_under(name, attention_forward)
    )


def register_under(name: str, forward: Any, mask: Any = None) -> str:
    """Registers an attention function and its mask function, by default that for torch's
    attention.
    """
    if "flash" in name:
        raise InvalidArgument(
            f"name is {name!r}; it must be 'rocflash' or 'flash_attention_2', or not contain "
            "'flash', by which transformers means flash_attn"
        )
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask or sdpa_mask)
    return name


def _packed_lengths(kwargs: dict[str, Any]) -> Optional[tuple[Tensor, Tensor, Any, Any]]:
    names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    given = [kwargs.get(name) for name in names]
    if given[0] is None and given[1] is None:
        return None
    if given[0] is None or given[1] is None:
        missing = names[0] if given[0] is None else names[1]
        raise InvalidArgument(f"{missing} is None, but its counterpart is given; give both")
    return as_int32(names[0], given[0]), as_int32(names[1], given[1]), given[2], given[3]


def check_sliding_window(value: Any) -> None:
    """Rejects 0, which would mask all keys; as a window of (-1, 0) it would mean no bound."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidArgument(
            f"sliding_window is {value!r}; it must be None (no window) or an integer of at least 1"
        )


def _mask_options(mask: Optional[Tensor]) -> dict[str, Tensor]:
    """A mask of transformers as mask (bool) or bias (float)."""
    if mask is None:
        return {}
    if mask.dim() == 2:
        mask = mask[:, None, None, :]
    if mask.is_floating_point():
        return {"bias": mask}
    return {"mask": mask.to(torch.bool)}


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
    """(out (b, sq, h, d), weights or None) for query (b, h, sq, d), key and value (b, hk, sk,
    d).
    """
    check_sliding_window(sliding_window)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    options: dict[str, Any] = {
        "softmax_scale": scaling,
        "softcap": softcap or 0.0,
        "sinks": s_aux if s_aux is None or s_aux.dtype == q.dtype else s_aux.float(),
        "dropout_p": dropout,
    }
    packed = _packed_lengths(kwargs)
    if packed is not None:
        if q.shape[0] != 1:
            raise InvalidArgument(
                f"cu_seq_lens_q is given, but the batch is {q.shape[0]}; it must be 1"
            )
        q, k, v = q[0], k[0], v[0]
        options["cu_seqlens_q"], options["cu_seqlens_k"] = packed[:2]
        options["causal"] = bool(causal)
        if sliding_window is not None:
            options["window"] = (sliding_window - 1, 0 if causal else sliding_window - 1)
    elif attention_mask is not None:
        options.update(_mask_options(attention_mask))
    else:
        # No mask: causal, or attention to all keys; a single query attends to every key.
        options["causal"] = bool(causal) and q.shape[1] > 1
        if options["causal"] and k.shape[1] > q.shape[1]:
            # A prompt in a static cache: as in torch, the mask starts at the first key, and the
            # rest is unused capacity.
            k, v = k[:, : q.shape[1]], v[:, : q.shape[1]]
        if sliding_window is not None:
            # transformers creates no mask if the window holds all keys. Other callers may rely on
            # it.
            options["window"] = (sliding_window - 1, 0 if causal else sliding_window - 1)
    found = rocflash.attention(q, k, v, return_weights=bool(output_attentions), **options)
    out, weights = found if output_attentions else (found, None)
    if weights is not None and dropout:
        weights = weights.clamp(min=0) / (1 - dropout)
    if packed is not None:
        out = out[None]
    return out, weights
