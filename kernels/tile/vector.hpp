// Dtype traits, vector types of the instructions, and conversions of f16 and bf16. Words4, 16 bytes
// in four registers, is both the widest load of a lane and the common MMA fragment.
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

// For the static_assert in the last branch over dtypes: a new dtype does not compile where no
// branch handles it.
template <DType>
inline constexpr bool handled_dtype = false;

// What kernels know about a dtype. Type: of an element. sign_mask: the sign bits of a word.
template <DType dtype>
struct DTypeTraits {
  static_assert(handled_dtype<dtype>, "DTypeTraits has no specialization for this dtype");
};
template <>
struct DTypeTraits<DType::f32> {
  using Type = float;
  static constexpr int bits = 32;
  static constexpr std::uint32_t sign_mask = 0x80000000u;
};
template <>
struct DTypeTraits<DType::f16> {
  using Type = _Float16;
  static constexpr int bits = 16;
  static constexpr std::uint32_t sign_mask = 0x80008000u;
};
template <>
struct DTypeTraits<DType::bf16> {
  using Type = __bf16;
  static constexpr int bits = 16;
  static constexpr std::uint32_t sign_mask = 0x80008000u;
};

// Bytes of one element in memory.
template <DType dtype>
inline constexpr int element_bytes = DTypeTraits<dtype>::bits / 8;

// The element type of a 16-bit dtype.
template <DType dtype>
struct HalfOf {
  static_assert(DTypeTraits<dtype>::bits == 16, "this code is for dtypes of 16 bits");
  using Type = typename DTypeTraits<dtype>::Type;
};
template <DType dtype>
using Half = typename HalfOf<dtype>::Type;

// A word's elements, or those of several words, with inverted signs.
template <DType dtype, class Words>
constexpr Words negated(Words words) {
  return words ^ DTypeTraits<dtype>::sign_mask;
}

template <DType dtype>
constexpr float widen(std::uint16_t bits) {
  return static_cast<float>(__builtin_bit_cast(Half<dtype>, bits));
}

// Calls visit.operator()<dtype>() for a dtype of kernels that is known at run time. The switch has
// no default: the compiler rejects a dtype without a case.
template <class Visit>
constexpr auto with_dtype(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::f32:
      return visit.template operator()<DType::f32>();
    case DType::f16:
      return visit.template operator()<DType::f16>();
    case DType::bf16:
      return visit.template operator()<DType::bf16>();
    case DType::f64:
    case DType::i32:
    case DType::boolean:
    case DType::e4m3fn:
    case DType::e4m3fnuz:
    case DType::e5m2:
    case DType::e5m2fnuz:
    case DType::i8:
      break;
  }
  __builtin_unreachable();
}
// The same for a dtype of 16 bits.
template <class Visit>
constexpr auto with_half(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::f16:
      return visit.template operator()<DType::f16>();
    case DType::bf16:
      return visit.template operator()<DType::bf16>();
    case DType::f32:
    case DType::f64:
    case DType::i32:
    case DType::boolean:
    case DType::e4m3fn:
    case DType::e4m3fnuz:
    case DType::e5m2:
    case DType::e5m2fnuz:
    case DType::i8:
      break;
  }
  __builtin_unreachable();
}

constexpr int bytes_of(DType dtype) {
  return with_dtype(dtype, []<DType known>() { return element_bytes<known>; });
}

constexpr float widen(DType dtype, std::uint16_t bits) {
  return with_half(dtype, [=]<DType known>() { return widen<known>(bits); });
}

// Round to nearest even.
template <DType dtype>
constexpr std::uint16_t narrow(float x) {
  return __builtin_bit_cast(std::uint16_t, static_cast<Half<dtype>>(x));
}
constexpr std::uint16_t narrow(DType dtype, float x) {
  return with_half(dtype, [=]<DType known>() { return narrow<known>(x); });
}

template <DType dtype>
constexpr std::uint32_t narrow_pair(float low, float high) {
  using Pair = Half<dtype> __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(std::uint32_t, __builtin_convertvector((Float2{low, high}), Pair));
}

// x times `factor`. A NaN becomes the default NaN: rounded to bf16, another payload could become a
// finite value.
inline float statistic(float x, float factor) { return x == x ? x * factor : __builtin_nanf(""); }

// Converts two non-negative softmax weights P to 16 bits. For bf16 without a conversion
// instruction, rounding half away from zero takes three operations per pair; round to nearest even
// takes nine. A NaN may lose its sign or payload; the caller detects it in the row sum. Two steps,
// for schedules that interleave them with MFMA: per element, then packing of a pair.
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
