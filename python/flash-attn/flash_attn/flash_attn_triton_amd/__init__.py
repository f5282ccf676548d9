"""The name of upstream's Triton backend for AMD GPUs; some look for it before they take flash_attn on RDNA cards.

`interface_v2` always computes by Triton kernels, rocflash's own; `interface_fa`, its older name, by the chosen backend.
"""
