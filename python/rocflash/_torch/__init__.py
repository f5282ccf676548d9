"""torch tensors to the library and back. `route` looks at torch, the others do what it says."""
