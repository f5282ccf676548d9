// Exponentials and logarithms of f32 kernels, beside those of doubles.
#include "wide/powers.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace rocflash::kernel {
namespace {

TEST(ExactPowers, ExponentialsErrByOneUnit) {
  for (float x = -87.2f; x < 88.6f; x += 0.00317f) {
    const double want = std::exp(static_cast<double>(x));
    const double unit = std::ldexp(1.0, std::ilogb(want) - 23);
    ASSERT_NEAR(ExactPowers::exp(x), want, 1.1 * unit) << x;
  }
  EXPECT_EQ(ExactPowers::exp(0), 1);
  EXPECT_EQ(ExactPowers::exp(-100), 0);
  EXPECT_EQ(ExactPowers::exp(-infinity), 0);
  EXPECT_EQ(ExactPowers::exp(1e30f), infinity);
  EXPECT_EQ(ExactPowers::exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(ExactPowers::exp(std::nanf("255"))));
}

TEST(ExactPowers, LseErrsByLittleMoreThanOneUnit) {
  for (float total = 0x1p-20f; total < 0x1p40f; total *= 1.0137f) {
    for (const float reference : {0.0f, -3.7f, 5.3f, 20.1f, -300.3f}) {
      const double want = reference + std::log(static_cast<double>(total));
      // Where reference and logarithm cancel, the logarithm's own last bit counts.
      const double unit =
          std::fmax(std::ldexp(1.0, std::ilogb(want) - 23), std::fabs(want - reference) * 0x1p-23);
      ASSERT_NEAR(ExactPowers::lse(reference, total), want, 1.5 * unit)
          << reference << " " << total;
    }
  }
  EXPECT_EQ(ExactPowers::lse(1, infinity), infinity);
  EXPECT_EQ(ExactPowers::lse(infinity, 1), infinity);
  EXPECT_TRUE(std::isnan(ExactPowers::lse(1, std::nanf(""))));
}

TEST(ExactPowers, ReciprocalsOfLimits) {
  EXPECT_EQ(ExactPowers::reciprocal(3), 1.0f / 3);
  EXPECT_EQ(ExactPowers::reciprocal(infinity), 0);
  EXPECT_EQ(ExactPowers::reciprocal(0), infinity);
}

}  // namespace
}  // namespace rocflash::kernel
