// AVX512-BF16: dot products of bf16 pairs, two elements per 32-bit lane.
#pragma once

#include "cpu/simd/avx512_vectors.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// VDPBF16PS: adds both products of each lane's pair. Products are exact; subnormal inputs count as
// 0.
ROCFLASH_INLINE Float add_products(Float sum, Word a, Word b) {
  return (Float)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
// Rounds 2 * width floats to bf16, in order.
ROCFLASH_INLINE Word pack_bf16(Float first, Float second) {
  return (Word)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
// Interleaves the elements of two rows into pairs, for the first `width` columns and for the rest.
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
// Rounds to bf16 pairs; the first operand is in the lower halves.
ROCFLASH_INLINE Word pair_up(Float lower, Float upper) {
  const Word both = pack_bf16(lower, upper);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return (Word)_mm512_permutexvar_epi16(order, (__m512i)both);
}

ROCFLASH_INLINE Short round_bf16(Float x) { return (Short)_mm512_cvtneps_pbh((__m512)x); }

// The larger of unsigned 16-bit halves, and whether any is at least `bound`.
ROCFLASH_INLINE Word larger_halves(Word a, Word b) {
  return (Word)_mm512_max_epu16((__m512i)a, (__m512i)b);
}
ROCFLASH_INLINE bool any_half_from(Word x, std::uint16_t bound) {
  return _mm512_cmpge_epu16_mask((__m512i)x, _mm512_set1_epi16((short)bound)) != 0;
}

// Columns c and c + 4 (mod 8) of two rows as pairs, and sums over them in the order of columns.
ROCFLASH_INLINE void interleave(Word a, Word b, Word (&to)[2]) {
  to[0] = (Word)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
  to[1] = (Word)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
}
ROCFLASH_INLINE void undo_interleave(Float (&v)[2]) {
  const Float low = v[0], high = v[1];
  v[0] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  v[1] = __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29,
                                 30, 31);
}
// Moves the infinities and NaNs of one half of each pair out of `value`.
ROCFLASH_INLINE Word take_nonfinite_halves(Word& value, int half) {
  const __m512i magnitude = _mm512_and_si512((__m512i)value, _mm512_set1_epi16(0x7fff));
  const __mmask32 of_half = half == 0 ? 0x55555555u : 0xaaaaaaaau,
                  taken = of_half & _mm512_cmpge_epu16_mask(magnitude, _mm512_set1_epi16(0x7f80));
  const Word nonfinite = (Word)_mm512_maskz_mov_epi16(taken, (__m512i)value);
  value = (Word)_mm512_mask_mov_epi16((__m512i)value, taken, _mm512_setzero_si512());
  return nonfinite;
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
