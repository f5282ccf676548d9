// Conversions between elements of any dtype and doubles, independent of the library's conversions,
// which are under test.
#pragma once

#include <rocflash/rocflash.hpp>

#include <array>
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

constexpr bool is_8_bit(DType t) { return t >= DType::e4m3fn; }

// Half the distance between 1 and the next number: the largest relative error of one rounding.
constexpr double unit_roundoff(DType t) {
  switch (t) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::f32:
      return 0x1p-24;
    case DType::e4m3fn:
    case DType::e4m3fnuz:
      return 0x1p-4;
    case DType::e5m2:
    case DType::e5m2fnuz:
      return 0x1p-3;
    case DType::i8:  // relative to the largest number
      return 0.5 / 127;
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
    case DType::e4m3fn:
      return 448;
    case DType::e4m3fnuz:
      return 240;
    case DType::e5m2:
    case DType::e5m2fnuz:
      return 57344;
    case DType::i8:
      return 127;
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

// The value of an 8-bit code, by the definition of its format.
inline double value_of_code(DType t, unsigned code) {
  if (t == DType::i8) return code < 128 ? code : static_cast<double>(code) - 256;
  const bool fnuz = t == DType::e4m3fnuz || t == DType::e5m2fnuz,
             e4m3 = t == DType::e4m3fn || t == DType::e4m3fnuz;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = (e4m3 ? 7 : 15) + (fnuz ? 1 : 0);
  const unsigned fraction = code & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(code & 127u) >> mantissa_bits;
  const double sign = code >= 128 ? -1 : 1, nan = std::nan("");
  if (fnuz && code == 128) return nan;
  if (t == DType::e4m3fn && (code & 127u) == 127) return nan;
  if (t == DType::e5m2 && exponent == 31) return fraction == 0 ? sign * HUGE_VAL : nan;
  const double least = std::ldexp(1.0, 1 - bias - mantissa_bits);
  if (exponent == 0) return sign * fraction * least;
  return sign * std::ldexp(1.0 + std::ldexp(fraction, -mantissa_bits), exponent - bias);
}
// All codes of a format, computed once.
inline const std::array<double, 256>& values_of(DType t) {
  static const auto tables = [] {
    std::array<std::array<double, 256>, 5> all{};
    for (std::size_t n = 0; n < all.size(); ++n)
      for (unsigned code = 0; code < 256; ++code)
        all[n][code] =
            value_of_code(static_cast<DType>(static_cast<std::size_t>(DType::e4m3fn) + n), code);
    return all;
  }();
  return tables[static_cast<std::size_t>(t) - static_cast<std::size_t>(DType::e4m3fn)];
}
// The code of the nearest finite value, the even one of two. Infinity stays infinity in e5m2 and
// is the largest value elsewhere. NaN stays NaN, or 0 in int8.
inline std::uint8_t nearest_code(DType t, double x) {
  const auto& values = values_of(t);
  const auto finite = [&](int code) {
    return std::isfinite(values[static_cast<std::size_t>(code)]);
  };
  if (std::isnan(x)) return t == DType::i8 ? 0 : finite(128) ? 0x7f : 0x80;
  if (t == DType::e5m2 && std::isinf(x)) return x > 0 ? 0x7c : 0xfc;
  int low = 0, high = 127;  // codes of positive numbers are in order
  while (!finite(high)) --high;
  const double size = std::abs(x);
  const int largest = high;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (values[static_cast<std::size_t>(middle)] <= size ? low : high) = middle;
  }
  const double down = size - values[static_cast<std::size_t>(low)],
               up = values[static_cast<std::size_t>(high)] - size;
  const int code = size >= values[static_cast<std::size_t>(largest)] ? largest
                   : down < up || (down == up && low % 2 == 0)       ? low
                                                                     : high;
  if (!std::signbit(x)) return static_cast<std::uint8_t>(code);
  if (t == DType::i8) return static_cast<std::uint8_t>(-code);
  return static_cast<std::uint8_t>(code == 0 && !finite(128) ? 0 : 128 + code);
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
    default:
      return values_of(t)[as(std::uint8_t{})];
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
    default:
      put(nearest_code(t, x));
  }
}

}  // namespace rocflash::verify
