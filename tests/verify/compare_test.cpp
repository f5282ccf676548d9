// The rule, in numbers.
#include "verify/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rocflash::verify {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Judge, allows_twice_the_error_of_plain_attention_forward) {
  const Finding at = judge("out", {{1, 2}, {1.01, 2}, {1, 2.02}}, {DType::f32});
  EXPECT_NEAR(at.bound(), 0.02, 1e-12);
  EXPECT_NEAR(at.ratio(), 1, 1e-9);
  EXPECT_TRUE(judge("out", {{1, 2}, {1.01, 2}, {1, 2.0199}}, {DType::f32}).good());
  EXPECT_FALSE(judge("out", {{1, 2}, {1.01, 2}, {1, 2.0201}}, {DType::f32}).good());
}

TEST(Judge, allows_three_times_for_gradients) {
  EXPECT_TRUE(judge("dq", {{1}, {1.01}, {1.0299}}, {DType::f32, true}).good());
  EXPECT_FALSE(judge("dq", {{1}, {1.01}, {1.0301}}, {DType::f32, true}).good());
}

TEST(Judge, allows_a_rounding_where_plain_attention_is_lucky) {
  EXPECT_TRUE(judge("out", {{4}, {4}, {4 + 0x1p-8}}, {DType::f16}).good());
  EXPECT_FALSE(judge("out", {{4}, {4}, {4 + 0x1p-7}}, {DType::f16}).good());
  EXPECT_FALSE(judge("out", {{4}, {4}, {4 + 0x1p-8}}, {DType::f32}).good());
}

TEST(Judge, wants_nan_and_infinities_in_their_places_only) {
  const double nan = std::nan("");
  EXPECT_TRUE(
      judge("out", {{nan, infinity, 1}, {nan, infinity, 1}, {nan, infinity, 1}}, {}).good());
  EXPECT_FALSE(judge("out", {{nan, 1}, {nan, 1}, {0, 1}}, {}).good());
  EXPECT_FALSE(judge("out", {{1, 1}, {1, 1}, {nan, 1}}, {}).good());
  EXPECT_FALSE(judge("lse", {{infinity}, {infinity}, {-infinity}}, {}).good());
  EXPECT_FALSE(judge("lse", {{infinity}, {infinity}, {1e30}}, {}).good());
  EXPECT_FALSE(judge("out", {{1}, {infinity}, {infinity}}, {}).good());
}

TEST(Judge, a_failure_of_plain_attention_excuses_nobody) {
  EXPECT_FALSE(judge("out", {{1, 1}, {std::nan(""), 1}, {1.5, 1}}, {}).good());
}

TEST(Judge, exact_facts_are_exact) {
  const Rule zero{DType::bf16, false, false, {true, false}};
  EXPECT_TRUE(judge("out", {{0, 1}, {0.1, 1}, {-0.0, 1}}, zero).good());
  EXPECT_FALSE(judge("out", {{0, 1}, {0.1, 1}, {1e-30, 1}}, zero).good());
  const Rule signs{DType::bf16, false, true, {}};
  EXPECT_TRUE(judge("s_dmask", {{-0.001, 1}, {-0.001, 1}, {-0.001, 1}}, signs).good());
  EXPECT_FALSE(judge("s_dmask", {{-0.001, 1}, {-0.001, 1}, {0.001, 1}}, signs).good());
}

TEST(Judge, nothing_is_always_right) {
  EXPECT_TRUE(judge("out", {}, {}).good());
  EXPECT_EQ(judge("out", {}, {}).ratio(), 0);
}

TEST(Judge, no_error_may_be_where_none_is_allowed) {
  const Finding f = judge("dq", {{0}, {0}, {1e-9}}, {DType::f32, true});
  EXPECT_FALSE(f.good());
  EXPECT_EQ(f.ratio(), infinity);
}

// Sixteen draws: the first went wrong, or all did by a little.
TEST(Pool, JudgesTheWholeAndNotOneDraw) {
  const auto after_draws = [](double first, double others) {
    Finding f, other;
    f.error = first;
    other.error = others;
    f.plain_error = other.plain_error = 1;
    for (int n = 2; n <= 16; ++n) f.pool(other, n);
    return f;
  };
  EXPECT_TRUE(after_draws(3, 1).good());
  EXPECT_FALSE(after_draws(8, 1).good()) << "nobody is that unlucky";
  EXPECT_FALSE(after_draws(2.2, 2.1).good());
  EXPECT_DOUBLE_EQ(after_draws(2, 2).error, 2);
  EXPECT_DOUBLE_EQ(after_draws(2, 2).plain_error, 1);
}

}  // namespace
}  // namespace rocflash::verify
