// The conversions of verify/: exact if representable, otherwise rounded to nearest even.
#include "verify/scalar.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace rocflash::verify {
namespace {

double round_trip(DType t, double x) {
  std::array<std::byte, 8> bytes{};
  store(bytes.data(), t, x);
  return load(bytes.data(), t);
}

TEST(Scalar, every_16_bit_number_round_trips) {
  for (const DType t : {DType::f16, DType::bf16}) {
    for (unsigned bits = 0; bits < 0x10000u; ++bits) {
      const auto in = static_cast<std::uint16_t>(bits);
      std::array<std::byte, 2> bytes{};
      std::memcpy(bytes.data(), &in, 2);
      const double x = load(bytes.data(), t);
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(round_trip(t, x)));
      } else {
        EXPECT_EQ(round_trip(t, x), x) << name_of(t) << " " << bits;
      }
    }
  }
}

TEST(Scalar, ties_round_to_even) {
  EXPECT_EQ(round_trip(DType::bf16, 1 + 0x1p-8), 1.0);
  EXPECT_EQ(round_trip(DType::bf16, 1 + 3 * 0x1p-8), 1 + 0x1p-6);
  EXPECT_EQ(round_trip(DType::bf16, 1 + 0x1p-8 + 0x1p-20), 1 + 0x1p-7);
  EXPECT_EQ(round_trip(DType::f16, 1 + 0x1p-11), 1.0);
  EXPECT_EQ(round_trip(DType::f16, 65520.0), std::numeric_limits<double>::infinity());
}

TEST(Scalar, unit_roundoff_is_the_largest_error_of_one_rounding) {
  for (const DType t : {DType::f16, DType::bf16, DType::f32}) {
    const double u = unit_roundoff(t);
    EXPECT_EQ(round_trip(t, 1 + u), 1.0) << name_of(t);
    EXPECT_EQ(round_trip(t, 1 + 1.01 * u), 1 + 2 * u) << name_of(t);
  }
}

}  // namespace
}  // namespace rocflash::verify
