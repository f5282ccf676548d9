// Shared by all ISAs with NEON. The file of each ISA defines its traits first.
#pragma once

#include <arm_neon.h>

#include "cpu/simd/types.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

ROCFLASH_INLINE Float fused(Float a, Float b, Float c) {
  return (Float)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

// 2^x; `polynomial` evaluates it for |fraction| <= 1/2.
template <class Polynomial>
ROCFLASH_INLINE Float quick_exp2(Float x, Polynomial polynomial) {
  return exp2_by_bits(x, polynomial);
}

// One step of folding `count` vectors into one lane each: combines the halves of both vectors.
template <int count, class Merge>
ROCFLASH_INLINE Float fold_two(Float a, Float b, Merge merge) {
  return merge(__builtin_shufflevector(a, b, 0, 2, 4, 6),
               __builtin_shufflevector(a, b, 1, 3, 5, 7));
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
