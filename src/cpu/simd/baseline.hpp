// The x86-64 baseline: SSE2.
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Without FMA each term is rounded twice, so summation blocks are short.
inline constexpr Traits traits{.width = 4, .summation_block = 4, .blocks_in_registers = false};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/types.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

ROCFLASH_INLINE Float fused(Float a, Float b, Float c) { return a * b + c; }

// 2^x; `polynomial` evaluates it for |fraction| <= 1/2.
template <class Polynomial>
ROCFLASH_INLINE Float quick_exp2(Float x, Polynomial polynomial) {
  return exp2_by_bits(x, polynomial);
}

// One step of folding `count` vectors into one lane each: combines the halves of both vectors.
// In-lane shuffles come first, because they are faster.
template <int count, class Merge>
ROCFLASH_INLINE Float fold_two(Float a, Float b, Merge merge) {
  return merge(__builtin_shufflevector(a, b, 0, 2, 4, 6),
               __builtin_shufflevector(a, b, 1, 3, 5, 7));
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
