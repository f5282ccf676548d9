"""The C ABI for Python: structs, memory for a call, options. Independent of array libraries and
torch.
"""
