"""Attention by Triton kernels: the backend `triton`, for GPUs that Triton compiles for.

`problem` checks a call, `launch` plans kernels and runs them, `calls` is the interface for
`_torch`. The kernels are in `forward` and `backward`, what both share in `device_functions`. Only
`device_functions`, `forward` and `backward` import Triton.
"""
