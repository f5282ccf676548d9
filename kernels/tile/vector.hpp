// Vectors as instructions take them, and what differs between f16 and bf16. Sixteen bytes in four
// registers are the common unit: what a lane loads from memory at once, and what it passes to a
// matrix instruction.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"

namespace rocflash::kernel {

using Words2 = std::uint32_t __attribute__((ext_vector_type(2)));
using Words4 = std::uint32_t __attribute__((ext_vector_type(4)));
using Words8 = std::uint32_t __attribute__((ext_vector_type(8)));
using Float2 = float __attribute__((ext_vector_type(2)));
using Float4 = float __attribute__((ext_vector_type(4)));
using Float8 = float __attribute__((ext_vector_type(8)));
using Float16 = float __attribute__((ext_vector_type(16)));

// Bytes of one number in memory.
template <DType dtype>
inline constexpr int number_bytes = static_cast<int>(size_of(dtype));

template <DType dtype>
struct Half;

template <>
struct Half<DType::f16> {
  using Type = _Float16;
};
template <>
struct Half<DType::bf16> {
  using Type = __bf16;
};

template <DType dtype>
constexpr float widen(std::uint16_t bits) {
  return static_cast<float>(__builtin_bit_cast(typename Half<dtype>::Type, bits));
}

// To the nearest, ties to even.
template <DType dtype>
constexpr std::uint16_t narrow(float x) {
  return __builtin_bit_cast(std::uint16_t, static_cast<typename Half<dtype>::Type>(x));
}

template <DType dtype>
constexpr std::uint32_t narrow_pair(float low, float high) {
  using Pair = typename Half<dtype>::Type __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(std::uint32_t, __builtin_convertvector((Float2{low, high}), Pair));
}

// Two numbers that are never negative. Rounding half away from zero is as near as half to even, and
// without an instruction for bf16 it costs three operations per pair instead of nine. (A NaN may
// lose its sign or payload here; the caller keeps it elsewhere.) In two steps, for schedules that
// place them one by one: what each number needs, and what makes a word of two.
template <DType dtype>
inline std::uint32_t weight_bits(float x) {
#if defined(__AMDGCN__) && !defined(__gfx950__)
  if constexpr (dtype == DType::bf16) return __builtin_bit_cast(std::uint32_t, x) + 0x8000u;
#endif
  return __builtin_bit_cast(std::uint32_t, x);
}
template <DType dtype>
inline std::uint32_t joined_weights(std::uint32_t low, std::uint32_t high) {
#if defined(__AMDGCN__) && !defined(__gfx950__)
  if constexpr (dtype == DType::bf16) return __builtin_amdgcn_perm(high, low, 0x07060302);
#endif
  return narrow_pair<dtype>(__builtin_bit_cast(float, low), __builtin_bit_cast(float, high));
}
template <DType dtype>
inline std::uint32_t narrow_weights(float low, float high) {
  return joined_weights<dtype>(weight_bits<dtype>(low), weight_bits<dtype>(high));
}

}  // namespace rocflash::kernel
