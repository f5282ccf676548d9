"""The name of upstream's Triton backend for AMD GPUs; some clients check for it before they use
flash_attn on RDNA cards.

`interface_v2` always uses rocflash's Triton kernels; `interface_fa`, its older name, uses the
selected backend.
"""
