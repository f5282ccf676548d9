"""Calls on torch tensors. `route` selects the path of a call from torch's state; the other modules
implement the paths.
"""
