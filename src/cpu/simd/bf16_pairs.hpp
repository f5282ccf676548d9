// Pairs of bf16 numbers, two in each 32-bit lane, with AVX512-BF16.
#pragma once

#include "cpu/simd/avx512_vectors.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Both products of each lane's pairs, added to its sum. Products are exact; numbers below the
// smallest normal one count as 0.
ROCFLASH_INLINE Float add_products(Float sum, Word a, Word b) {
  return (Float)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
// 2 * width numbers rounded to bf16, in their order.
ROCFLASH_INLINE Word side_by_side(Float first, Float second) {
  return (Word)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
// From words of neighbours in two rows to pairs of one number from each, for the first `width`
// columns and for the others.
ROCFLASH_INLINE Word pair_first(Word lower, Word upper) {
  const __m512i order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  return (Word)_mm512_permutex2var_epi16((__m512i)lower, order, (__m512i)upper);
}
ROCFLASH_INLINE Word pair_second(Word lower, Word upper) {
  const __m512i order =
      _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54,
                       22, 53, 21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
  return (Word)_mm512_permutex2var_epi16((__m512i)lower, order, (__m512i)upper);
}
// Rounded to bf16, the first in the lower halves.
ROCFLASH_INLINE Word pair_up(Float lower, Float upper) {
  const Word both = side_by_side(lower, upper);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return (Word)_mm512_permutexvar_epi16(order, (__m512i)both);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
