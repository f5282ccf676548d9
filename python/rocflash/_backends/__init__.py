"""Backends that are no part of the library, as its peers: `triton` has kernels of its own, `ck` calls AITER.

Both take torch tensors. `problem` checks a call once for either, as the library's own door does; each has the functions
`check`, `forward`, `backward` and `refuse_missing_gradients` that `_torch.calls` hands over to.
"""
