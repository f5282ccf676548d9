// The error bound on small examples.
#include "verify/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rocflash::verify {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Compare, allows_twice_the_error_of_naive_attention_forward) {
  const Comparison at = compare("out", {{1, 2}, {1.01, 2}, {1, 2.02}}, {DType::f32});
  EXPECT_NEAR(at.bound(), 0.02, 1e-12);
  EXPECT_NEAR(at.ratio(), 1, 1e-9);
  EXPECT_TRUE(compare("out", {{1, 2}, {1.01, 2}, {1, 2.0199}}, {DType::f32}).good());
  EXPECT_FALSE(compare("out", {{1, 2}, {1.01, 2}, {1, 2.0201}}, {DType::f32}).good());
}

TEST(Compare, allows_three_times_the_error_for_gradients) {
  EXPECT_TRUE(compare("dq", {{1}, {1.01}, {1.0299}}, {DType::f32, true}).good());
  EXPECT_FALSE(compare("dq", {{1}, {1.01}, {1.0301}}, {DType::f32, true}).good());
}

TEST(Compare, allows_one_rounding_if_naive_attention_has_no_error) {
  EXPECT_TRUE(compare("out", {{4}, {4}, {4 + 0x1p-8}}, {DType::f16}).good());
  EXPECT_FALSE(compare("out", {{4}, {4}, {4 + 0x1p-7}}, {DType::f16}).good());
  EXPECT_FALSE(compare("out", {{4}, {4}, {4 + 0x1p-8}}, {DType::f32}).good());
}

TEST(Compare, requires_nan_and_infinities_at_the_same_elements) {
  const double nan = std::nan("");
  EXPECT_TRUE(
      compare("out", {{nan, infinity, 1}, {nan, infinity, 1}, {nan, infinity, 1}}, {}).good());
  EXPECT_FALSE(compare("out", {{nan, 1}, {nan, 1}, {0, 1}}, {}).good());
  EXPECT_FALSE(compare("out", {{1, 1}, {1, 1}, {nan, 1}}, {}).good());
  EXPECT_FALSE(compare("lse", {{infinity}, {infinity}, {-infinity}}, {}).good());
  EXPECT_FALSE(compare("lse", {{infinity}, {infinity}, {1e30}}, {}).good());
  EXPECT_FALSE(compare("out", {{1}, {infinity}, {infinity}}, {}).good());
}

TEST(Compare, nan_of_naive_attention_does_not_loosen_the_bound) {
  EXPECT_FALSE(compare("out", {{1, 1}, {std::nan(""), 1}, {1.5, 1}}, {}).good());
}

TEST(Compare, zeros_and_signs_are_exact) {
  const Tolerance zero{DType::bf16, false, false, {true, false}};
  EXPECT_TRUE(compare("out", {{0, 1}, {0.1, 1}, {-0.0, 1}}, zero).good());
  EXPECT_FALSE(compare("out", {{0, 1}, {0.1, 1}, {1e-30, 1}}, zero).good());
  const Tolerance signs{DType::bf16, false, true, {}};
  EXPECT_TRUE(compare("s_dmask", {{-0.001, 1}, {-0.001, 1}, {-0.001, 1}}, signs).good());
  EXPECT_FALSE(compare("s_dmask", {{-0.001, 1}, {-0.001, 1}, {0.001, 1}}, signs).good());
}

TEST(Compare, empty_tensors_are_good) {
  EXPECT_TRUE(compare("out", {}, {}).good());
  EXPECT_EQ(compare("out", {}, {}).ratio(), 0);
}

TEST(Compare, a_bound_of_0_allows_no_error) {
  const Comparison f = compare("dq", {{0}, {0}, {1e-9}}, {DType::f32, true});
  EXPECT_FALSE(f.good());
  EXPECT_EQ(f.ratio(), infinity);
}

// Sixteen draws: a large error in the first one, or small errors in all.
TEST(Pool, BoundsTheRootMeanSquareOverAllDraws) {
  const auto after_draws = [](double first, double others) {
    Comparison f, other;
    f.error = first;
    other.error = others;
    f.naive_error = other.naive_error = 1;
    for (int n = 2; n <= 16; ++n) f.pool(other, n);
    return f;
  };
  EXPECT_TRUE(after_draws(3, 1).good());
  EXPECT_FALSE(after_draws(8, 1).good()) << "too large for one unlucky draw";
  EXPECT_FALSE(after_draws(2.2, 2.1).good());
  EXPECT_DOUBLE_EQ(after_draws(2, 2).error, 2);
  EXPECT_DOUBLE_EQ(after_draws(2, 2).naive_error, 1);
}

}  // namespace
}  // namespace rocflash::verify
