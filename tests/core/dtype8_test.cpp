// The 8-bit dtypes: all 256 codes against the definition of their formats, and rounding against a
// search for the nearest value.
#include "core/dtype8.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/dtype.hpp"

namespace rocflash {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Format {
  DType dtype;
  int exponent_bits, bias;
  double largest, smallest;

  int mantissa_bits() const { return 7 - exponent_bits; }
  bool fnuz() const { return dtype == DType::e4m3fnuz || dtype == DType::e5m2fnuz; }

  // By the OCP 8-bit floating point specification, and for fnuz by that of ONNX.
  double value(int code) const {
    const int exponent = (code & 0x7f) >> mantissa_bits(),
              mantissa = code & ((1 << mantissa_bits()) - 1);
    const double sign = code & 0x80 ? -1 : 1;
    if (fnuz() && code == 0x80) return nan;
    if (dtype == DType::e4m3fn && (code & 0x7f) == 0x7f) return nan;
    if (dtype == DType::e5m2 && exponent == 31) return mantissa ? nan : sign * infinity;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits());
    return sign * std::ldexp((1 << mantissa_bits()) + mantissa, exponent - bias - mantissa_bits());
  }
};

const Format formats[] = {{DType::e4m3fn, 4, 7, 448, 0x1p-9},
                          {DType::e4m3fnuz, 4, 8, 240, 0x1p-10},
                          {DType::e5m2, 5, 15, 57344, 0x1p-16},
                          {DType::e5m2fnuz, 5, 16, 57344, 0x1p-17}};

float decoded(DType t, int code) { return decode(t, static_cast<std::uint8_t>(code)); }

TEST(DType8, EveryCodeIsDecodedAndEncoded) {
  for (const Format& f : formats) {
    for (int code = 0; code < 256; ++code) {
      const double expected = f.value(code);
      const float got = decoded(f.dtype, code);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got)) << name_of(f.dtype) << " " << code;
        continue;
      }
      EXPECT_EQ(static_cast<double>(got), expected) << name_of(f.dtype) << " " << code;
      EXPECT_EQ(std::signbit(got), std::signbit(expected)) << name_of(f.dtype) << " " << code;
      if (std::isfinite(expected)) EXPECT_EQ(encode(f.dtype, got), code) << name_of(f.dtype);
    }
  }
  for (int code = 0; code < 256; ++code) {
    const int expected = code < 128 ? code : code - 256;
    EXPECT_EQ(decoded(DType::i8, code), static_cast<float>(expected));
    if (expected != -128) EXPECT_EQ(encode(DType::i8, static_cast<float>(expected)), code);
  }
}

// The finite values of non-negative codes, in increasing order of both.
std::vector<float> positive_values(DType t) {
  std::vector<float> values;
  for (int code = 0; code < 128 && std::isfinite(decoded(t, code)); ++code)
    values.push_back(decoded(t, code));
  return values;
}

TEST(DType8, RoundsToNearestEvenBetweenAllNeighbors) {
  for (const DType t : {DType::e4m3fn, DType::e4m3fnuz, DType::e5m2, DType::e5m2fnuz, DType::i8}) {
    const std::vector<float> values = positive_values(t);
    for (std::size_t n = 0; n + 1 < values.size(); ++n) {
      const float middle = (values[n] + values[n + 1]) / 2;  // exact
      const auto code = [&](float x) { return static_cast<std::size_t>(encode(t, x)); };
      EXPECT_EQ(code(middle), n % 2 == 0 ? n : n + 1) << name_of(t) << " " << n;
      EXPECT_EQ(code(std::nextafter(middle, 0.0f)), n) << name_of(t) << " " << n;
      EXPECT_EQ(code(std::nextafter(middle, 1e30f)), n + 1) << name_of(t) << " " << n;
      // The negative ones mirror them, except that fnuz and int8 have no −0.
      EXPECT_EQ(decode(t, encode(t, -middle)), -decode(t, encode(t, middle))) << name_of(t);
    }
  }
}

TEST(DType8, SaturatesToTheLargestFiniteValue) {
  for (const Format& f : formats) {
    EXPECT_EQ(positive_values(f.dtype).back(), static_cast<float>(f.largest));
    EXPECT_EQ(positive_values(f.dtype)[1], static_cast<float>(f.smallest));
    for (const double x : {f.largest * 1.0001, f.largest * 2, 1e30, infinity}) {
      EXPECT_EQ(decode(f.dtype, encode(f.dtype, static_cast<float>(x))),
                static_cast<float>(f.largest));
      EXPECT_EQ(decode(f.dtype, encode(f.dtype, static_cast<float>(-x))),
                static_cast<float>(-f.largest));
    }
  }
  for (const float x : {127.4f, 128.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(encode(DType::i8, x), 127);
    EXPECT_EQ(encode(DType::i8, -x), 0x81);
  }
}

TEST(DType8, SmallNumbersRoundToZero) {
  for (const Format& f : formats) {
    for (const double x : {f.smallest / 2, f.smallest / 4, 1e-40, 0.0}) {
      EXPECT_EQ(encode(f.dtype, static_cast<float>(x)), 0);
      EXPECT_EQ(encode(f.dtype, static_cast<float>(-x)), f.fnuz() ? 0 : 0x80) << name_of(f.dtype);
    }
  }
  EXPECT_EQ(encode(DType::i8, 0.5f), 0);
  EXPECT_EQ(encode(DType::i8, -0.5f), 0);
  EXPECT_EQ(encode(DType::i8, 1.5f), 2);
}

TEST(DType8, NanStaysNanExceptInInt8) {
  for (const Format& f : formats) {
    EXPECT_TRUE(std::isnan(decode(f.dtype, encode(f.dtype, static_cast<float>(nan)))));
    EXPECT_TRUE(std::isnan(decode(f.dtype, encode(f.dtype, static_cast<float>(-nan)))));
  }
  EXPECT_EQ(encode(DType::i8, static_cast<float>(nan)), 0);
}

TEST(DType8, IsUsableInConstantExpressions) {
  static_assert(decode(float8::e4m3fn, 0x38) == 1 && encode(float8::e4m3fn, 1) == 0x38);
  static_assert(decode(float8::e4m3fnuz, 0x40) == 1 && encode(float8::e5m2fnuz, 1) == 0x40);
  static_assert(decode_int8(0x80) == -128 && encode_int8(-1) == 0xff);
}

}  // namespace
}  // namespace rocflash
