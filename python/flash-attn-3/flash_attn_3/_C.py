"""The name of upstream's extension: importing it registers torch.ops.flash_attn_3."""

from flash_attn_3._operators import served_by

__all__ = ["served_by"]
