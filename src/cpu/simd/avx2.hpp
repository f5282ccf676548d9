// AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr Traits traits{.width = 8, .summation_block = 16, .blocks_in_registers = false};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/types.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

ROCFLASH_INLINE Float fused(Float a, Float b, Float c) {
  return (Float)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

// 2^x; `polynomial` evaluates it for |fraction| <= 1/2.
template <class Polynomial>
ROCFLASH_INLINE Float quick_exp2(Float x, Polynomial polynomial) {
  return exp2_by_bits(x, polynomial);
}

// One step of folding `count` vectors into one lane each: combines the halves of both vectors.
// In-lane shuffles come first, because they are faster.
template <int count, class Merge>
ROCFLASH_INLINE Float fold_two(Float a, Float b, Merge merge) {
  if constexpr (count == 8) {
    return merge(__builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13),
                 __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15));
  } else if constexpr (count == 4) {
    return merge(__builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13),
                 __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15));
  } else {
    return merge(__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11),
                 __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
