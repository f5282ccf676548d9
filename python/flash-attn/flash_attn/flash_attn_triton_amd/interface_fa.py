"""The raw functions under the name of upstream's Triton backend for AMD."""

from flash_attn_2_cuda import bwd, fwd, fwd_kvcache, varlen_bwd, varlen_fwd

__all__ = ["bwd", "fwd", "fwd_kvcache", "varlen_bwd", "varlen_fwd"]
