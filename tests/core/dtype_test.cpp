// The scalar conversions of all 65536 bit patterns of the 16-bit types, against arithmetic on their
// bit fields.
#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace rocflash {
namespace {

struct Format {
  DType dtype;
  int exponent_bits, mantissa_bits;

  std::uint16_t largest_finite() const {
    return static_cast<std::uint16_t>((((1 << exponent_bits) - 1) << mantissa_bits) - 1);
  }
  std::uint16_t infinity() const { return static_cast<std::uint16_t>(largest_finite() + 1); }

  // The value of a bit pattern by the definition of IEEE 754.
  double value(std::uint16_t bits) const {
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa ? std::numeric_limits<double>::quiet_NaN()
                      : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
};

constexpr Format formats[] = {{DType::f16, 5, 10}, {DType::bf16, 8, 7}};

std::uint16_t stored(DType t, double x) {
  std::uint16_t bits = 0xdead;
  store_double(&bits, t, 0, x);
  return bits;
}

TEST(DType, Every16BitValueIsLoadedAndStored) {
  for (const Format& f : formats) {
    for (int n = 0; n < 65536; ++n) {
      const auto bits = static_cast<std::uint16_t>(n);
      const double expected = f.value(bits), got = load_as_double(&bits, f.dtype, 0);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << n;
        ASSERT_TRUE(std::isnan(f.value(stored(f.dtype, got)))) << n;
      } else {
        ASSERT_EQ(got, expected) << name_of(f.dtype) << " " << n;
        ASSERT_EQ(std::signbit(got), std::signbit(expected)) << n;
        ASSERT_EQ(stored(f.dtype, expected), bits) << name_of(f.dtype) << " " << n;
      }
    }
  }
}

// Between adjacent values the midpoint rounds to the even one, everything else to the nearer one.
TEST(DType, RoundsToNearestTiesToEven) {
  for (const Format& f : formats) {
    for (std::uint16_t low = 0; low < f.largest_finite(); ++low) {
      const auto high = static_cast<std::uint16_t>(low + 1);
      const auto even = low % 2 == 0 ? low : high;
      const double half = (f.value(low) + f.value(high)) / 2;
      for (const double sign : {1.0, -1.0}) {
        const int bit = sign < 0 ? 0x8000 : 0;
        ASSERT_EQ(stored(f.dtype, sign * half), even | bit) << name_of(f.dtype) << " " << low;
        ASSERT_EQ(stored(f.dtype, sign * std::nextafter(half, 0.0)), low | bit) << low;
        ASSERT_EQ(stored(f.dtype, sign * std::nextafter(half, 1e300)), high | bit) << low;
      }
    }
  }
}

TEST(DType, OverflowRoundsToInfinity) {
  for (const Format& f : formats) {
    const double largest = f.value(f.largest_finite());
    const double half =
        largest + (largest - f.value(static_cast<std::uint16_t>(f.largest_finite() - 1))) / 2;
    EXPECT_EQ(stored(f.dtype, std::nextafter(half, 0.0)), f.largest_finite());
    EXPECT_EQ(stored(f.dtype, half), f.infinity());
    for (const double huge : {1e39, 1e300, std::numeric_limits<double>::infinity()}) {
      EXPECT_EQ(stored(f.dtype, huge), f.infinity()) << huge;
      EXPECT_EQ(stored(f.dtype, -huge), f.infinity() | 0x8000) << huge;
    }
    EXPECT_EQ(stored(f.dtype, 1e-300), 0);
    EXPECT_EQ(stored(f.dtype, -1e-300), 0x8000);
  }
}

// The conversion from float has its own code; the same rules hold for adjacent floats.
TEST(DType, Bf16FromFloatRoundsToNearestTiesToEven) {
  const Format& f = formats[1];
  for (std::uint16_t low = 0; low < f.largest_finite(); ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const std::uint32_t half = (std::uint32_t{low} << 16) | 0x8000u;
    ASSERT_EQ(bf16_from_float(__builtin_bit_cast(float, half)), low % 2 == 0 ? low : high) << low;
    ASSERT_EQ(bf16_from_float(__builtin_bit_cast(float, half - 1)), low) << low;
    ASSERT_EQ(bf16_from_float(__builtin_bit_cast(float, half + 1)), high) << low;
  }
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), f.infinity());
}

TEST(DType, NanWithAnyPayloadStaysNan) {
  for (const std::uint32_t bits :
       {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7f808000u}) {
    const auto x = __builtin_bit_cast(float, bits);
    EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(x)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(formats[0].value(stored(DType::f16, double{x})))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(formats[1].value(stored(DType::bf16, double{x})))) << std::hex << bits;
  }
}

TEST(DType, SizesOfTheTypes) {
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::i32), sizeof(std::int32_t));
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::boolean), 1u);
}

TEST(DType, WiderTypesAndBooleans) {
  double f64 = 0;
  store_double(&f64, DType::f64, 0, 0.1);
  EXPECT_EQ(load_as_double(&f64, DType::f64, 0), 0.1);
  float f32 = 0;
  store_double(&f32, DType::f32, 0, 0.1);
  EXPECT_EQ(f32, 0.1f);
  const std::int32_t i32 = -7;
  EXPECT_EQ(load_as_double(&i32, DType::i32, 0), -7.0);
  const std::uint8_t booleans[] = {0, 1, 2, 255};
  EXPECT_EQ(load_as_double(booleans, DType::boolean, 0), 0.0);
  for (int n = 1; n < 4; ++n) EXPECT_EQ(load_as_double(booleans, DType::boolean, n), 1.0);
}

}  // namespace
}  // namespace rocflash
