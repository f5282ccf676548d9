"""rocflash as an attention backend of diffusers.

>>> import rocflash.integrations.diffusers as bridge
>>> pipe.transformer.set_attention_backend(bridge.register())

diffusers' own backends "flash" and "flash_varlen" call the installed flash_attn too, but take f16
and bf16 without masks. This one has masks of every form and float32.
"""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor

import rocflash
from rocflash.errors import Unsupported

NAME = "rocflash"

__all__ = ["NAME", "attention", "register"]


def register() -> str:
    """Adds `rocflash` to diffusers' backends, and returns that name. Idempotent."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    if NAME not in AttentionBackendName._value2member_map_:
        _AttentionBackendRegistry.register(_member(AttentionBackendName))(attention)
    return NAME


def _member(names: Any) -> Any:
    """A new member of diffusers' enumeration of backends: models look names up in it."""
    member = str.__new__(names, NAME)
    member._name_, member._value_ = NAME.upper(), NAME
    names._member_map_[member._name_] = member
    names._value2member_map_[NAME] = member
    names._member_names_.append(member._name_)
    type.__setattr__(names, member._name_, member)
    return member


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
) -> Any:
    """diffusers' attention: (b, s, h, d), with the mask of torch's attention; with `return_lse`
    also lse (b, s, h).
    """
    if _parallel_config is not None:
        raise Unsupported(
            f"the attention backend is {NAME!r} with context parallelism; it must be 'flash'"
        )
    if not enable_gqa and key.shape[2] != query.shape[2]:
        # Without it torch rejects fewer KV heads.
        raise Unsupported(
            f"key has {key.shape[2]} heads, and query {query.shape[2]}; without enable_gqa both "
            "must be equal"
        )
    options: dict[str, Any] = {"softmax_scale": scale, "dropout_p": dropout_p}
    if attn_mask is not None:
        mask = _of_heads(attn_mask, query.shape[0], key.shape[1])
        options["bias" if mask.is_floating_point() else "mask"] = mask
    if is_causal:
        # As in torch, the mask starts at the first key.
        if key.shape[1] < query.shape[1]:
            raise Unsupported(
                f"key has length {key.shape[1]}, and query {query.shape[1]}; with is_causal it "
                "must be at least as long"
            )
        options["causal"] = True
        key, value = key[:, : query.shape[1]], value[:, : query.shape[1]]
    if not return_lse:
        return rocflash.attention(query, key, value, **options)
    out, lse = rocflash.attention(query, key, value, return_lse=True, **options)
    return out, lse.transpose(1, 2)


def _of_heads(mask: Tensor, batch: int, keys: int) -> Tensor:
    """A mask as (b, h, sq, sk); of two dimensions it is (b, sk), or (sq, sk)."""
    if mask.dim() == 2 and mask.shape == (batch, keys):
        return mask[:, None, None]
    return mask[(None,) * (4 - mask.dim())]
