"""flash_attn_3.flash_attn_interface under the name that upstream installs at top level."""

from flash_attn_3.flash_attn_interface import (
    _flash_attn_backward,
    _flash_attn_forward,
    flash_attn_3_gpu,
    flash_attn_combine,
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    get_scheduler_metadata,
    maybe_contiguous,
    operators_served_by,
    round_up_headdim,
)

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "flash_attn_3_gpu",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
    "maybe_contiguous",
    "operators_served_by",
    "round_up_headdim",
]
