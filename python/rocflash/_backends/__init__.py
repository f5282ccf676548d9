"""Backends outside of the library: `triton` with kernels in Python, and `ck`, which calls AITER.

Both support torch tensors. `problem` validates calls of both, like the library's API layer. Each
has the functions `check`, `forward`, `backward` and `refuse_missing_gradients`, which
`_torch.calls` dispatches to.
"""
