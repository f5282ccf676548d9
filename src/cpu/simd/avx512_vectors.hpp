// Shared by all ISAs with AVX-512. The file of each ISA defines its traits first.
#pragma once

#include <immintrin.h>

#include "cpu/simd/types.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

ROCFLASH_INLINE Float fused(Float a, Float b, Float c) {
  return (Float)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

// 2^x; `polynomial` evaluates it for |fraction| <= 1/2.
template <class Polynomial>
ROCFLASH_INLINE Float quick_exp2(Float x, Polynomial polynomial) {
  const Float whole = (Float)_mm512_roundscale_ps((__m512)x, 0);
  return (Float)_mm512_scalef_ps((__m512)polynomial(x - whole), (__m512)whole);
}

// One step of folding `count` vectors into one lane each: combines the halves of both vectors.
// In-lane shuffles come first, because they are faster.
template <int count, class Merge>
ROCFLASH_INLINE Float fold_two(Float a, Float b, Merge merge) {
  if constexpr (count == 16) {
    return merge(
        __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
        __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31));
  } else if constexpr (count == 8) {
    return merge(
        __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
        __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
  } else {
    return merge(
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
