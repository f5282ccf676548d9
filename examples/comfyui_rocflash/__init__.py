"""A ComfyUI node that computes a model's attention with rocflash.

Copy this directory into ComfyUI/custom_nodes. The node "rocflash attention" takes a MODEL and
returns one whose attention calls come here: ComfyUI hands them to the function that it finds in
`transformer_options["optimized_attention_override"]`.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from torch import Tensor

import rocflash


def attention(
    original: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Optional[Tensor] = None,
    attn_precision: Any = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    scale: Optional[float] = None,
    **options: Any,
) -> Tensor:
    """ComfyUI's attention function: (b, s, h·d), or (b, h, s, d) with `skip_reshape`."""
    # What is no option of attention. Accumulation is in f32 whatever `attn_precision` is.
    known = {"transformer_options", "enable_gqa", "_inside_attn_wrapper", "low_precision_attention"}
    if unknown := set(options) - known:
        raise TypeError(f"rocflash: attention options {sorted(unknown)} are not supported")
    if skip_reshape:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    else:
        q = q.unflatten(-1, (heads, -1))
        k, v = (x.unflatten(-1, (-1, q.shape[-1])) for x in (k, v))
    if mask is not None:  # (sq, sk), (b, sq, sk) or (b, h, sq, sk)
        mask = mask[None, None] if mask.dim() == 2 else mask[:, None] if mask.dim() == 3 else mask
    boolean = mask is not None and not mask.is_floating_point()
    out = rocflash.attention(
        q, k, v, softmax_scale=scale, mask=mask if boolean else None, bias=None if boolean else mask
    )  # fmt: skip
    return out.transpose(1, 2) if skip_output_reshape else out.flatten(2)


class RocflashAttention:
    CATEGORY = "model_patches"
    FUNCTION = "patch"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # ComfyUI's name
        return {"required": {"model": ("MODEL",)}}

    def patch(self, model: Any) -> tuple[Any]:
        patched = model.clone()
        options = patched.model_options.setdefault("transformer_options", {})
        # A copy: clone() may share it with the original model.
        patched.model_options["transformer_options"] = {
            **options,
            "optimized_attention_override": attention,
        }
        return (patched,)


NODE_CLASS_MAPPINGS = {"RocflashAttention": RocflashAttention}
NODE_DISPLAY_NAME_MAPPINGS = {"RocflashAttention": "rocflash attention"}
