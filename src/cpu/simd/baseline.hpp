// What every x86-64 has: SSE2.
#pragma once

#include <cstdint>

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr int width = 4, registers = 16;  // lanes of a vector of floats
// How many terms a dot product of floats adds up before it starts a new sum, and whether registers
// hold what the runs before have come to.
// Without fused products every term loses more, and runs are short.
inline constexpr std::int64_t run_of_terms = 4;
inline constexpr bool runs_in_registers = false;

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/types.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// a * b + c without rounding the product, where the CPU can do that in one step. The compiler fuses
// nothing by itself.
ROCFLASH_INLINE Float fused(Float a, Float b, Float c) { return a * b + c; }
ROCFLASH_INLINE float fused(float a, float b, float c) { return a * b + c; }
// The same vector, of which the compiler no longer knows where it came from.
ROCFLASH_INLINE Float opaque(Float x) {
  __asm__("" : "+x"(x));
  return x;
}

// Across lanes: the second half is laid over the first until one is left.
template <class Merge>
ROCFLASH_INLINE float fold(Float v, Merge merge) {
  v = merge(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
  v = merge(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
  return v[0];
}
// Halves of both vectors merged, side by side: the first step for each of `count` vectors that are
// folded into one lane each. Shuffles within quarters of a vector come first, because they are
// fast.
template <int count, class Merge>
ROCFLASH_INLINE Float fold_two(Float a, Float b, Merge merge) {
  return merge(__builtin_shufflevector(a, b, 0, 2, 4, 6),
               __builtin_shufflevector(a, b, 1, 3, 5, 7));
}

// 2^x, where `polynomial` gives it for fractions of at most 1/2.
template <class Polynomial>
ROCFLASH_INLINE Float quick_exp2(Float x, Polynomial polynomial) {
  return exp2_by_bits(x, polynomial);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
