"""Operations that upstream implements as kernels, here with torch."""
