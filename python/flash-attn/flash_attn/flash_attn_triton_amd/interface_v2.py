"""The raw functions of FlashAttention-2, always computed by the backend `triton`.

Signatures and results are those of `flash_attn_2_cuda`.
`flash_attn.flash_attn_interface.flash_attn_gpu` is this module where
FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE or ROCFLASH_BACKEND=triton was set at import.
"""

import flash_attn_2_cuda as _raw
from rocflash.dropin import use_backend

_by_triton = use_backend("triton")
USE_TRITON_ROCM = True

fwd = _by_triton(_raw.fwd)
bwd = _by_triton(_raw.bwd)
varlen_fwd = _by_triton(_raw.varlen_fwd)
varlen_bwd = _by_triton(_raw.varlen_bwd)
fwd_kvcache = _by_triton(_raw.fwd_kvcache)

__all__ = ["bwd", "fwd", "fwd_kvcache", "varlen_bwd", "varlen_fwd"]
