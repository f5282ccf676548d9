"""Attention by Triton kernels: the backend `triton`, for GPUs that Triton compiles for.

`problem` checks a call, `launch` plans kernels and runs them, `calls` is the face for torch's side. The kernels are in
`forward` and `backward`, what both share in `pieces`. Only `pieces`, `forward` and `backward` import Triton.
"""
