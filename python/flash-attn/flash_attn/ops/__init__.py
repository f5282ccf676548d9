"""Operations that upstream writes as kernels of their own; here torch does them."""
