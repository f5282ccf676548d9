// Operations on the value of one lane that several instruction groups share.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/types.h"

namespace rocflash::sim {

template <typename B, int Mantissa, int Bias>
struct Layout {
  using Bits = B;
  static constexpr int kMantissa = Mantissa;
  static constexpr int kBias = Bias;
};
template <typename T>
struct FloatLayout;
template <>
struct FloatLayout<f16> : Layout<u16, 10, 15> {};
template <>
struct FloatLayout<bf16> : Layout<u16, 7, 127> {};
template <>
struct FloatLayout<float> : Layout<u32, 23, 127> {};
template <>
struct FloatLayout<double> : Layout<u64, 52, 1023> {};

template <typename T>
auto bits_of(T x) {
  return std::bit_cast<typename FloatLayout<T>::Bits>(x);
}

template <typename T>
bool is_signaling(T x) {
  using B = typename FloatLayout<T>::Bits;
  const B quiet = B(B(1) << (FloatLayout<T>::kMantissa - 1));
  return x != x && (bits_of(x) & quiet) == 0;
}

template <typename T>
T quiet(T x) {
  using B = typename FloatLayout<T>::Bits;
  return std::bit_cast<T>(B(bits_of(x) | B(B(1) << (FloatLayout<T>::kMantissa - 1))));
}

// min and max of generations with MODE.IEEE (set for compute kernels): a signaling NaN
// is returned quiet, a number wins over a quiet NaN, and -0 is less than +0. `first`: whether a is
// the result if both are numbers.
template <typename T>
T ieee_choice(T a, T b, bool first) {
  T r = first ? a : b;
  if (b != b) r = a;
  if (a != a) r = b;
  if (is_signaling(b)) r = quiet(b);
  if (is_signaling(a)) r = quiet(a);
  return r;
}
template <typename T>
T ieee_min(T a, T b) {
  return ieee_choice(a, b, a < b || (a == b && std::signbit(static_cast<double>(a))));
}
template <typename T>
T ieee_max(T a, T b) {
  return ieee_choice(a, b, a > b || (a == b && !std::signbit(static_cast<double>(a))));
}

// gfx12's minimumNumber and maximumNumber: a number beats any NaN.
template <typename T>
T number_min(T a, T b) {
  if (a != a) return b != b ? quiet(a) : b;
  if (b != b) return a;
  return ieee_min(a, b);
}
template <typename T>
T number_max(T a, T b) {
  if (a != a) return b != b ? quiet(a) : b;
  if (b != b) return a;
  return ieee_max(a, b);
}

// gfx12's minimum and maximum: any NaN wins.
template <typename T>
T nan_min(T a, T b) {
  if (a != a) return quiet(a);
  if (b != b) return quiet(b);
  return ieee_min(a, b);
}
template <typename T>
T nan_max(T a, T b) {
  if (a != a) return quiet(a);
  if (b != b) return quiet(b);
  return ieee_max(a, b);
}

// The middle one; with a NaN it is the minimum of all three, as the manuals say.
template <typename T>
T median(T a, T b, T c) {
  if (a != a || b != b || c != c) return ieee_min(ieee_min(a, b), c);
  const T largest = ieee_max(ieee_max(a, b), c);
  if (bits_of(largest) == bits_of(a)) return ieee_max(b, c);
  if (bits_of(largest) == bits_of(b)) return ieee_max(a, c);
  return ieee_max(a, b);
}

template <typename T>
T median_int(T a, T b, T c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

// double -> float with the discarded bits recorded in the last one, so that a second rounding to a
// narrower type is right in every mode.
inline float to_float_odd(double x) {
  const float nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || x != x) return nearest;
  u32 bits = std::bit_cast<u32>(nearest);
  const double magnitude = x < 0 ? -x : x;
  const double rounded = static_cast<double>(nearest < 0 ? -nearest : nearest);
  if (rounded > magnitude) --bits;
  return std::bit_cast<float>(bits | 1u);
}

inline f16 to_half(double x) { return static_cast<f16>(to_float_odd(x)); }

// An f16 product is exact in double and so, but for a tail the rounding to odd keeps, is the sum.
inline f16 fma_half(f16 a, f16 b, f16 c) {
  return to_half(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}

inline f16 half_toward_zero(float x) {
  const auto h = static_cast<f16>(x);
  const float back = static_cast<float>(h);
  const float magnitude = x < 0 ? -x : x;
  const float rounded = back < 0 ? -back : back;
  return rounded > magnitude ? std::bit_cast<f16>(u16(std::bit_cast<u16>(h) - 1)) : h;
}

inline u16 to_bf16(float x) {
  const u32 bits = std::bit_cast<u32>(x);
  if (x != x) return static_cast<u16>((bits >> 16) | 0x40);
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

template <typename To, typename From>
To saturate(From x) {
  if (x != x) return 0;
  // Comparing in double holds every 32-bit bound exactly.
  const double v = static_cast<double>(x);
  if (v <= static_cast<double>(std::numeric_limits<To>::min())) {
    return std::numeric_limits<To>::min();
  }
  if (v >= static_cast<double>(std::numeric_limits<To>::max())) {
    return std::numeric_limits<To>::max();
  }
  return static_cast<To>(v);
}

template <typename T>
T clamp_to(i64 x) {
  return static_cast<T>(
      std::clamp<i64>(x, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

inline i32 sext24(u32 x) { return static_cast<i32>(x << 8) >> 8; }

// ldexp with one rounding.
inline float scale_float(float x, i32 e) {
  return static_cast<float>(std::ldexp(static_cast<double>(x), std::clamp(e, -400, 400)));
}

inline u32 reverse_bits(u32 x) { return __builtin_bitreverse32(x); }

// Sums of 16-bit integers: wrapping, or saturating with `clamp`.
template <typename T>
inline constexpr auto kSum = [](T a, T b) { return T(a + b); };
template <typename T>
inline constexpr auto kClampedSum = [](T a, T b) { return clamp_to<T>(i64(a) + b); };
template <typename T>
inline constexpr auto kDifference = [](T a, T b) { return T(a - b); };
template <typename T>
inline constexpr auto kClampedDifference = [](T a, T b) { return clamp_to<T>(i64(a) - b); };

}  // namespace rocflash::sim
