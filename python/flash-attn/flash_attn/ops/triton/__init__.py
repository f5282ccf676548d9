"""Names of upstream's Triton kernels. Nothing here needs Triton: torch serves every device."""
