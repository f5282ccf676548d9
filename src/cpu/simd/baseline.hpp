// What every x86-64 has: SSE2.
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Without fused products every term loses more, and runs are short.
inline constexpr Traits traits{.width = 4, .run_of_terms = 4, .runs_in_registers = false};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/types.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

ROCFLASH_INLINE Float fused(Float a, Float b, Float c) { return a * b + c; }

// 2^x, where `polynomial` gives it for fractions of at most 1/2.
template <class Polynomial>
ROCFLASH_INLINE Float quick_exp2(Float x, Polynomial polynomial) {
  return exp2_by_bits(x, polynomial);
}

// Halves of both vectors merged, side by side: the first step for each of `count` vectors that are
// folded into one lane each. Shuffles within quarters of a vector come first, because they are
// fast.
template <int count, class Merge>
ROCFLASH_INLINE Float fold_two(Float a, Float b, Merge merge) {
  return merge(__builtin_shufflevector(a, b, 0, 2, 4, 6),
               __builtin_shufflevector(a, b, 1, 3, 5, 7));
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
