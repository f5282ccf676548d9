// exp and lse of the FP32 path against double precision.
#include "fp32/exp_log.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace rocflash::kernel {
namespace {

TEST(ExactLogDomain, ExpIsAccurateToOneUlp) {
  for (float x = -87.2f; x < 88.6f; x += 0.00317f) {
    const double expected = std::exp(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(expected) - 23);
    ASSERT_NEAR(ExactLogDomain::exp(x), expected, 1.1 * ulp) << x;
  }
  EXPECT_EQ(ExactLogDomain::exp(0), 1);
  EXPECT_EQ(ExactLogDomain::exp(-100), 0);
  EXPECT_EQ(ExactLogDomain::exp(-infinity), 0);
  EXPECT_EQ(ExactLogDomain::exp(1e30f), infinity);
  EXPECT_EQ(ExactLogDomain::exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(ExactLogDomain::exp(std::nanf("255"))));
}

TEST(ExactLogDomain, LseIsAccurateToOneAndAHalfUlp) {
  for (float total = 0x1p-20f; total < 0x1p40f; total *= 1.0137f) {
    for (const float row_max : {0.0f, -3.7f, 5.3f, 20.1f, -300.3f}) {
      const double expected = row_max + std::log(static_cast<double>(total));
      // Where the running max and the logarithm cancel, the ulp of the logarithm counts.
      const double ulp = std::fmax(std::ldexp(1.0, std::ilogb(expected) - 23),
                                   std::fabs(expected - row_max) * 0x1p-23);
      ASSERT_NEAR(ExactLogDomain::lse(row_max, total), expected, 1.5 * ulp)
          << row_max << " " << total;
    }
  }
  EXPECT_EQ(ExactLogDomain::lse(1, infinity), infinity);
  EXPECT_EQ(ExactLogDomain::lse(infinity, 1), infinity);
  EXPECT_TRUE(std::isnan(ExactLogDomain::lse(1, std::nanf(""))));
}

TEST(ExactLogDomain, ReciprocalsOfZeroAndInfinity) {
  EXPECT_EQ(ExactLogDomain::reciprocal(3), 1.0f / 3);
  EXPECT_EQ(ExactLogDomain::reciprocal(infinity), 0);
  EXPECT_EQ(ExactLogDomain::reciprocal(0), infinity);
}

}  // namespace
}  // namespace rocflash::kernel
