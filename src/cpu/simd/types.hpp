// The vector types of an ISA, after its traits.
#pragma once

#include <cstdint>
#include <utility>

#include "core/inline.hpp"
#include "core/visibility.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr int width = traits.width;
inline constexpr int registers = traits.registers;
inline constexpr std::int64_t summation_block = traits.summation_block;
inline constexpr bool blocks_in_registers = traits.blocks_in_registers;

using Float = float __attribute__((vector_size(4 * width)));
using Int = std::int32_t __attribute__((vector_size(4 * width)));
using Word = std::uint32_t __attribute__((vector_size(4 * width)));
using Wide = std::uint64_t __attribute__((vector_size(4 * width)));
using Double = double __attribute__((vector_size(8 * width)));
using Half = _Float16 __attribute__((vector_size(2 * width)));
using Short = std::uint16_t __attribute__((vector_size(2 * width)));

inline constexpr float infinity = __builtin_inff();
inline constexpr float log2_e = 1.44269504088896340736f;

template <class Vector, class Scalar>
ROCFLASH_INLINE Vector load_as(const Scalar* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
ROCFLASH_INLINE Float load(const float* from) { return load_as<Float>(from); }
ROCFLASH_INLINE Word load(const std::uint32_t* from) { return load_as<Word>(from); }
ROCFLASH_INLINE void store(float* to, Float v) { __builtin_memcpy(to, &v, sizeof v); }
ROCFLASH_INLINE void store(std::uint32_t* to, Word v) { __builtin_memcpy(to, &v, sizeof v); }

// x - 0 is x for every x, which the compiler folds; x + 0 is not (for -0).
ROCFLASH_INLINE Float splat(float x) { return x - Float{}; }
ROCFLASH_INLINE Int splat(std::int32_t x) { return x - Int{}; }
ROCFLASH_INLINE Word splat(std::uint32_t x) { return x - Word{}; }

// a * b + c with one rounding, if the CPU has FMA. The compiler contracts nothing by itself
// (-ffp-contract=off). The file of each ISA has the vector overload.
ROCFLASH_INLINE float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
// The same vector with unknown origin for the optimizer.
ROCFLASH_INLINE Float opaque(Float x) {
#if defined(__aarch64__)
  __asm__("" : "+w"(x));
#else
  __asm__("" : "+v"(x));
#endif
  return x;
}

// Reduction across lanes: folds the second half onto the first until one lane is left.
template <int step, int... lane>
ROCFLASH_INLINE Float swap_lanes(Float v, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(v, v, (lane ^ step)...);
}
template <int step = width / 2, class Merge>
ROCFLASH_INLINE float fold(Float v, Merge merge) {
  v = merge(v, swap_lanes<step>(v, std::make_integer_sequence<int, width>{}));
  if constexpr (step > 1) return fold<step / 2>(v, merge);
  return v[0];
}

// 2^x in two steps: rounding to an integer by adding 1.5 * 2^23, and a polynomial for the fraction.
inline constexpr float to_integer = 12582912.0f;

// 2 to the integer in `shifted` above to_integer; 0 for -127.
ROCFLASH_INLINE Float power_of_two(Float shifted) {
  return (Float)(((Word)shifted - (Word)splat(to_integer) + 127u) << 23);
}
// 2^x; `polynomial` evaluates it for |fraction| <= 1/2.
template <class Polynomial>
ROCFLASH_INLINE Float exp2_by_bits(Float x, Polynomial polynomial) {
  x = x < -127.0f ? splat(-127.0f) : x;
  const Float shifted = x + to_integer;
  return polynomial(x - (shifted - to_integer)) * power_of_two(shifted);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
