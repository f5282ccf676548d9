// The 8-bit element types of quantized KV caches: the only definition of their values and of the
// rounding to them. Freestanding, for kernels too.
//
// A finite code is sign · 2^(exponent − bias) · significand, or a subnormal below, as in IEEE 754.
// The formats differ in exponent bits, bias, and the codes that are no finite number.
#pragma once

#include <cstdint>

#include "core/inline.hpp"
#include "core/names.hpp"

namespace rocflash::core {

// An 8-bit float. Magnitudes are codes without the sign bit.
struct Float8 {
  int mantissa_bits, bias;
  std::uint32_t largest;      // magnitude of the largest finite number
  std::uint32_t nan;          // magnitude of the NaN that encoding produces; fnuz: 0
  bool has_infinity = false;  // its magnitude is largest + 1, and those above are NaN
  bool fnuz = false;          // no −0: its code is the only NaN
};
namespace float8 {
inline constexpr Float8 e4m3fn{.mantissa_bits = 3, .bias = 7, .largest = 0x7e, .nan = 0x7f};
inline constexpr Float8 e4m3fnuz{
    .mantissa_bits = 3, .bias = 8, .largest = 0x7f, .nan = 0, .fnuz = true};
inline constexpr Float8 e5m2{
    .mantissa_bits = 2, .bias = 15, .largest = 0x7b, .nan = 0x7e, .has_infinity = true};
inline constexpr Float8 e5m2fnuz{
    .mantissa_bits = 2, .bias = 16, .largest = 0x7f, .nan = 0, .fnuz = true};
}  // namespace float8

ROCFLASH_INLINE constexpr float float_of_bits(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// Exact: f32 has every value. Without branches, for lanes of different codes.
ROCFLASH_INLINE constexpr float decode(Float8 f, std::uint32_t code) {
  constexpr std::uint32_t quiet_nan = 0x7fc00000u, infinity = 0x7f800000u, f32_bias = 127;
  const std::uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
  const auto rebias = f32_bias - static_cast<std::uint32_t>(f.bias);
  // A subnormal is an integer times the smallest one.
  const auto least = (rebias + 1 - static_cast<std::uint32_t>(f.mantissa_bits)) << 23;
  const float small = static_cast<float>(magnitude) * float_of_bits(least);
  const std::uint32_t normal = (magnitude << (23 - f.mantissa_bits)) + (rebias << 23);
  const std::uint32_t finite =
      magnitude >> f.mantissa_bits == 0 ? __builtin_bit_cast(std::uint32_t, small) : normal;
  const bool special = f.fnuz ? code == 0x80u : magnitude > f.largest;
  const bool infinite = f.has_infinity && magnitude == f.largest + 1;
  return float_of_bits(sign | (special ? (infinite ? infinity : quiet_nan) : finite));
}

// Rounds to nearest even and saturates to the largest finite number, infinity too. NaN stays NaN.
ROCFLASH_INLINE constexpr std::uint8_t encode(Float8 f, float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(f.fnuz ? 0x80u : sign | f.nan);
  // Exponent of the code, at most 0 for subnormals, whose significand is shifted further.
  const int exponent = static_cast<int>(magnitude >> 23) - 127 + f.bias;
  const int shift = 23 - f.mantissa_bits + (exponent < 1 ? 1 - exponent : 0);
  std::uint32_t code = 0;
  if (shift <= 24) {  // else below half of the smallest subnormal
    const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t whole = significand >> shift, half = 1u << (shift - 1);
    const std::uint32_t rest = significand & (2 * half - 1);
    code = whole + (rest > half || (rest == half && (whole & 1u) != 0) ? 1u : 0u);
    // The significand's leading bit adds 1 to the exponent, and so does a carry.
    if (exponent >= 1) code += static_cast<std::uint32_t>(exponent - 1) << f.mantissa_bits;
  }
  if (code > f.largest) code = f.largest;
  return static_cast<std::uint8_t>(f.fnuz && code == 0 ? 0 : sign | code);
}

// int8. -128 is a value, which encoding does not produce: the range is symmetric.
ROCFLASH_INLINE constexpr float decode_int8(std::uint32_t code) {
  return static_cast<float>(static_cast<std::int8_t>(code));
}
// Rounds to nearest even and saturates to ±127. NaN becomes 0: int8 has none.
ROCFLASH_INLINE constexpr std::uint8_t encode_int8(float x) {
  constexpr float most = 127.0f, to_integer = 12582912.0f;  // 1.5 · 2^23
  if (x != x) return 0;
  const float inside = x > most ? most : x < -most ? -most : x;
  return static_cast<std::uint8_t>(static_cast<std::int8_t>((inside + to_integer) - to_integer));
}

}  // namespace rocflash::core
