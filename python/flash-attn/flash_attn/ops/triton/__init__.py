"""The functions of upstream's Triton kernels, implemented with torch on all devices."""
