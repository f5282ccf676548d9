"""The name under which some look for a backend that serves RDNA cards.

No Triton is involved: whatever the device, the library computes.
"""
