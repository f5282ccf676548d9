// AVX2 with fused products and f16 conversions.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr int width = 8, registers = 16;  // lanes of a vector of floats
// How many terms a dot product of floats adds up before it starts a new sum, and whether registers
// hold what the runs before have come to.
inline constexpr std::int64_t run_of_terms = 16;
inline constexpr bool runs_in_registers = false;

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/types.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// a * b + c without rounding the product, where the CPU can do that in one step. The compiler fuses
// nothing by itself.
ROCFLASH_INLINE Float fused(Float a, Float b, Float c) {
  return (Float)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
ROCFLASH_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// The same vector, of which the compiler no longer knows where it came from.
ROCFLASH_INLINE Float opaque(Float x) {
  __asm__("" : "+x"(x));
  return x;
}

// Across lanes: the second half is laid over the first until one is left.
template <class Merge>
ROCFLASH_INLINE float fold(Float v, Merge merge) {
  v = merge(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = merge(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  v = merge(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
  return v[0];
}
// Halves of both vectors merged, side by side: the first step for each of `count` vectors that are
// folded into one lane each. Shuffles within quarters of a vector come first, because they are
// fast.
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

// 2^x, where `polynomial` gives it for fractions of at most 1/2.
template <class Polynomial>
ROCFLASH_INLINE Float quick_exp2(Float x, Polynomial polynomial) {
  return exp2_by_bits(x, polynomial);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
