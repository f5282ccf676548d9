// Conversions between elements of any dtype and doubles, independent of the library's conversions,
// which are under test.
#pragma once

#include <rocflash/rocflash.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace rocflash::verify {

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::boolean:
      return "bool";
  }
  return "?";
}

// Half the distance between 1 and the next number: the largest relative error of one rounding.
constexpr double unit_roundoff(DType t) {
  switch (t) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::f32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

constexpr double largest_finite(DType t) {
  switch (t) {
    case DType::f16:
      return 0x1.ffcp15;
    case DType::bf16:
      return 0x1.fep127;
    case DType::f32:
      return 0x1.fffffep127;
    default:
      return 0x1.fffffffffffffp1023;
  }
}

// Computed from the bits: the compiler's library call for the conversion took 10% of the run time.
constexpr double f16_value(std::uint16_t bits) {
  const std::uint64_t sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 0) return (sign != 0 ? -0x1p-24 : 0x1p-24) * static_cast<double>(fraction);
  const std::uint64_t wide = exponent == 31 ? 2047 : exponent - 15 + 1023;
  return std::bit_cast<double>(sign << 63 | wide << 52 | fraction << 42);
}

inline double load(const std::byte* at, DType t) {
  const auto as = [at]<class T>(T x) {
    std::memcpy(&x, at, sizeof x);
    return x;
  };
  switch (t) {
    case DType::f64:
      return as(double{});
    case DType::f32:
      return static_cast<double>(as(float{}));
    case DType::f16:
      return f16_value(as(std::uint16_t{}));
    case DType::bf16:
      return static_cast<double>(std::bit_cast<float>(std::uint32_t{as(std::uint16_t{})} << 16));
    case DType::i32:
      return static_cast<double>(as(std::int32_t{}));
    case DType::boolean:
      return static_cast<double>(as(std::uint8_t{}));
  }
  return 0;
}

inline std::uint16_t bf16_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return 0x7fc0;
  const std::uint32_t dropped = bits & 0xffffu, kept = bits >> 16;
  const bool up = dropped > 0x8000u || (dropped == 0x8000u && (kept & 1u) != 0);
  return static_cast<std::uint16_t>(kept + (up ? 1u : 0u));
}

inline void store(std::byte* at, DType t, double x) {
  const auto put = [at](auto value) { std::memcpy(at, &value, sizeof value); };
  switch (t) {
    case DType::f64:
      put(x);
      break;
    case DType::f32:
      put(static_cast<float>(x));
      break;
    case DType::f16:
      put(static_cast<_Float16>(x));
      break;
    case DType::bf16:
      put(bf16_bits(static_cast<float>(x)));
      break;
    case DType::i32:
      put(static_cast<std::int32_t>(x));
      break;
    case DType::boolean:
      put(static_cast<std::uint8_t>(x != 0));
      break;
  }
}

}  // namespace rocflash::verify
