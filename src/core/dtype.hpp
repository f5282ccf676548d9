// Element types of tensors, and the scalar conversions that define their rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype8.hpp"
#include "core/inline.hpp"
#include "core/names.hpp"

namespace rocflash::core {

enum class DType : std::uint8_t {
  f32,
  f16,
  bf16,
  f64,
  i32,
  boolean,
  e4m3fn,
  e4m3fnuz,
  e5m2,
  e5m2fnuz,
  i8,
};

// The dtypes of quantized keys and values.
ROCFLASH_INLINE constexpr bool is_8_bit(DType t) { return t >= DType::e4m3fn; }

ROCFLASH_INLINE constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::boolean:
    case DType::e4m3fn:
    case DType::e4m3fnuz:
    case DType::e5m2:
    case DType::e5m2fnuz:
    case DType::i8:
      return 1;
  }
  return 0;
}

ROCFLASH_INLINE constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::boolean:
      return "bool";
    case DType::e4m3fn:
      return "e4m3fn";
    case DType::e4m3fnuz:
      return "e4m3fnuz";
    case DType::e5m2:
      return "e5m2";
    case DType::e5m2fnuz:
      return "e5m2fnuz";
    case DType::i8:
      return "i8";
  }
  return "?";
}

ROCFLASH_INLINE constexpr float float_from_bf16(std::uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

// Round to nearest even; NaN stays NaN.
ROCFLASH_INLINE constexpr std::uint16_t bf16_from_float(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Double to bf16 through a float rounded to odd, which avoids double rounding.
ROCFLASH_INLINE std::uint16_t bf16_from_double(double x) {
  float f = static_cast<float>(x);
  if (static_cast<double>(f) != x && f == f) {
    auto bits = __builtin_bit_cast(std::uint32_t, f);
    const bool rounded_away = (x < 0) ? static_cast<double>(f) < x : static_cast<double>(f) > x;
    if (rounded_away) --bits;
    f = __builtin_bit_cast(float, bits | 1u);
  }
  return bf16_from_float(f);
}

// The value of an 8-bit code, without its scale.
ROCFLASH_INLINE constexpr float decode(DType t, std::uint8_t code) {
  switch (t) {
    case DType::e4m3fn:
      return decode(float8::e4m3fn, code);
    case DType::e4m3fnuz:
      return decode(float8::e4m3fnuz, code);
    case DType::e5m2:
      return decode(float8::e5m2, code);
    case DType::e5m2fnuz:
      return decode(float8::e5m2fnuz, code);
    default:
      return decode_int8(code);
  }
}
ROCFLASH_INLINE constexpr std::uint8_t encode(DType t, float x) {
  switch (t) {
    case DType::e4m3fn:
      return encode(float8::e4m3fn, x);
    case DType::e4m3fnuz:
      return encode(float8::e4m3fnuz, x);
    case DType::e5m2:
      return encode(float8::e5m2, x);
    case DType::e5m2fnuz:
      return encode(float8::e5m2fnuz, x);
    default:
      return encode_int8(x);
  }
}

ROCFLASH_INLINE double load_as_double(const void* base, DType t, std::int64_t index) {
  switch (t) {
    case DType::f64:
      return static_cast<const double*>(base)[index];
    case DType::f32:
      return static_cast<double>(static_cast<const float*>(base)[index]);
    case DType::f16:
      return static_cast<double>(static_cast<const _Float16*>(base)[index]);
    case DType::bf16:
      return static_cast<double>(float_from_bf16(static_cast<const std::uint16_t*>(base)[index]));
    case DType::i32:
      return static_cast<double>(static_cast<const std::int32_t*>(base)[index]);
    case DType::boolean:
      return static_cast<const std::uint8_t*>(base)[index] != 0 ? 1.0 : 0.0;
    case DType::e4m3fn:
    case DType::e4m3fnuz:
    case DType::e5m2:
    case DType::e5m2fnuz:
    case DType::i8:
      return static_cast<double>(decode(t, static_cast<const std::uint8_t*>(base)[index]));
  }
  return 0.0;
}

ROCFLASH_INLINE void store_double(void* base, DType t, std::int64_t index, double x) {
  switch (t) {
    case DType::f64:
      static_cast<double*>(base)[index] = x;
      break;
    case DType::f32:
      static_cast<float*>(base)[index] = static_cast<float>(x);
      break;
    case DType::f16:
      static_cast<_Float16*>(base)[index] = static_cast<_Float16>(x);
      break;
    case DType::bf16:
      static_cast<std::uint16_t*>(base)[index] = bf16_from_double(x);
      break;
    case DType::i32:
      static_cast<std::int32_t*>(base)[index] = static_cast<std::int32_t>(x);
      break;
    case DType::boolean:
      static_cast<std::uint8_t*>(base)[index] = x != 0;
      break;
    case DType::e4m3fn:
    case DType::e4m3fnuz:
    case DType::e5m2:
    case DType::e5m2fnuz:
    case DType::i8:
      static_cast<std::uint8_t*>(base)[index] = encode(t, static_cast<float>(x));
      break;
  }
}

}  // namespace rocflash::core
