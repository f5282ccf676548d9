// Score modifiers and dropout of device code against their definitions.
#include "attention/score_mod.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace rocflash::kernel {
namespace {

struct ScoreModTest : testing::Test {
  ScoreModTest() {
    p.heads = p.kv_heads = 2;
    p.lengths.batch = 1;
    p.lengths.rows_q = p.max_q = 5;
    p.lengths.rows_k = p.max_k = 9;
    p.scale = -0.5f;
  }
  template <class Domain = FastNaturalLogDomain>
  float modified(std::int32_t index, std::int32_t key, float product) const {
    const SequenceView s(p, 0);
    const QueryView query(p.visibility, s, index);
    float score = product;
    ScoreMod(p, s, 1).apply<1, Domain>(
        OneQuery{query.index}, [&](int) { return key; }, [&](int) -> float& { return score; });
    return score;
  }
  Problem p;
};

TEST_F(ScoreModTest, ScaleAndSoftcap) {
  EXPECT_FLOAT_EQ(modified(0, 0, 3), 1.5f);  // the schedule negates q for a negative scale
  p.softcap = 2;
  EXPECT_NEAR(modified(0, 0, 3), 2 * std::tanh(0.75), 1e-6);
  EXPECT_NEAR(modified(0, 0, 1e6f), 2, 1e-6);
  EXPECT_NEAR(modified(0, 0, -1e6f), -2, 1e-6);
}

// A cap far above the scores has no effect; scores far above the cap become the cap.
TEST_F(ScoreModTest, SoftcapsOfAnyMagnitude) {
  p.scale = 1;
  for (const float cap :
       {1e-38f, 1e-30f, 1e-3f, 1.0f, 255.0f, 257.0f, 1e4f, 1e6f, 1e7f, 1e30f, 3.4e38f}) {
    p.softcap = cap;
    for (const float score : {0.0f, 1e-4f, -0.3f, 7.0f, -40.0f, 3e4f, -2e38f}) {
      const double expected = cap * std::tanh(score / static_cast<double>(cap));
      EXPECT_NEAR(modified(0, 0, score), expected, 1e-6 * std::fabs(expected) + 4e-5)
          << cap << " " << score;
      EXPECT_NEAR(modified<NaturalLogDomain>(0, 0, score), expected, 1e-6 * std::fabs(expected))
          << cap << " " << score;
    }
  }
}

// The derivative is 1 - tanh² of score / cap.
TEST_F(ScoreModTest, DerivativesOfSoftcapsOfAnyMagnitude) {
  for (const float cap : {1e-30f, 1.0f, 255.0f, 1e6f, 3.4e38f}) {
    for (const float score : {0.0f, -0.3f, 7.0f, 3e4f}) {
      float capped = score, slope = -1;
      apply_softcap<FastNaturalLogDomain, 1>(
          cap, [&](int) -> float& { return capped; }, [&](int, float x) { slope = x; });
      const double t = std::tanh(score / static_cast<double>(cap));
      EXPECT_NEAR(slope, 1 - t * t, 1e-6) << cap << " " << score;
    }
  }
}

// One implementation: both passes compute the same scores, one query or several at a time.
TEST_F(ScoreModTest, PassesAgree) {
  p.softcap = 3;
  const float slopes[] = {0, 0.25f}, numbers[] = {0.5f, -1, 2, 0.25f, 1, -2, 0, 3, 1};
  const std::uint8_t mask[] = {1, 1, 0, 1, 1, 1, 1, 0, 1};
  p.alibi = {reinterpret_cast<std::byte*>(const_cast<float*>(slopes)), DType::f32, 0, 1};
  p.bias = {reinterpret_cast<std::byte*>(const_cast<float*>(numbers)), DType::f32, 0, 0, 0, 1};
  p.mask = {
      reinterpret_cast<std::byte*>(const_cast<std::uint8_t*>(mask)), DType::boolean, 0, 0, 0, 1};
  const SequenceView s(p, 0);
  for (std::int32_t query = 0; query < 5; ++query) {
    float forward[9], backward[9], slope[9];
    for (int n = 0; n < 9; ++n) {
      forward[n] = backward[n] = static_cast<float>(n - 4 + query);
      slope[n] = 1;
    }
    const auto key = [](int n) { return n; };
    ScoreMod(p, s, 1).apply<9, NaturalLogDomain>(OneQuery{query}, key,
                                                 [&](int n) -> float& { return forward[n]; });
    ScoreModGradient(p, s, 1).apply<9, NaturalLogDomain>(
        QueryPerScore{[&](int) { return query; }}, key,
        [&](int n) -> float& { return backward[n]; }, [&](int n, float x) { slope[n] *= x; });
    for (int n = 0; n < 9; ++n) {
      EXPECT_EQ(forward[n], backward[n]) << query << " " << n;
      EXPECT_EQ(forward[n] == -infinity, mask[n] == 0);
      const double t = std::tanh(0.5 * (n - 4 + query) / 3);
      EXPECT_NEAR(slope[n], 1 - t * t, 1e-6);
    }
  }
}

// A NaN that backward reads becomes the default NaN, which rounds to a NaN of bf16.
TEST_F(ScoreModTest, GradientsReadTheDefaultNan) {
  const auto nan = __builtin_bit_cast(float, 0x7f800001u);
  p.bias = {reinterpret_cast<std::byte*>(const_cast<float*>(&nan)), DType::f32, 0, 0, 0, 0};
  const SequenceView s(p, 0);
  float score = 1;
  ScoreModGradient(p, s, 0).apply<1, NaturalLogDomain>(
      OneQuery{0}, [](int) { return 0; }, [&](int) -> float& { return score; });
  EXPECT_NE(__builtin_bit_cast(std::uint32_t, score) & 0x7fff0000u, 0x7f800000u);
}

// Every finite bias stays finite: it is not multiplied by log2(e).
TEST_F(ScoreModTest, LargestBiasStaysFinite) {
  const std::uint16_t least = 0xff7f, most = 0x7f7f;  // finfo(bf16)
  for (const std::uint16_t bits : {least, most}) {
    p.bias = {
        reinterpret_cast<std::byte*>(const_cast<std::uint16_t*>(&bits)), DType::bf16, 0, 0, 0, 0};
    EXPECT_EQ(modified(0, 0, 3), widen<DType::bf16>(bits));
  }
}

TEST_F(ScoreModTest, AlibiIsProportionalToTheDistance) {
  const float slopes[] = {1, 0.25f};
  p.alibi = {reinterpret_cast<std::byte*>(const_cast<float*>(slopes)), DType::f32, 0, 1};
  EXPECT_FLOAT_EQ(modified(1, 8, 0), -0.25f * 3);  // query 1 of 5 has position 5 of 9 keys
  EXPECT_FLOAT_EQ(modified(1, 0, 0), -0.25f * 5);
}

TEST_F(ScoreModTest, BiasAndMask) {
  std::vector<float> bias(5 * 9);
  for (std::size_t n = 0; n < bias.size(); ++n) bias[n] = static_cast<float>(n);
  std::vector<std::uint8_t> mask(9, 1);
  mask[4] = 0;
  p.bias = {reinterpret_cast<std::byte*>(bias.data()), DType::f32, 0, 0, 9, 1};
  EXPECT_NEAR(modified(2, 3, 2), 1 + 21, 1e-5);
  // Rows and keys out of range read the last element.
  EXPECT_NEAR(modified(7, 12, 0), 44, 1e-5);
  p.mask = {reinterpret_cast<std::byte*>(mask.data()), DType::boolean, 0, 0, 0, 1};
  EXPECT_EQ(modified(2, 4, 2), -infinity);
  EXPECT_NEAR(modified(2, 3, 2), 1 + 21, 1e-5);
}

TEST_F(ScoreModTest, DropoutEqualsTheHosts) {
  p.dropout = {0.4f, dropout_threshold(0.4f), 0x123456789abcdefull, 77};
  const SequenceView s(p, 0);
  const ScoreMod score_mod(p, s, 1);
  for (std::int32_t index = 0; index < 5; ++index) {
    float weights[16];
    for (float& w : weights) w = 1;
    score_mod.drop<16, 8>(
        index, [](int n) { return 8 + n; }, [&](int n) -> float& { return weights[n]; });
    for (std::int32_t key = 8; key < 24; ++key) {
      const bool kept = p.dropout.keeps(1, index, key);
      EXPECT_EQ(score_mod.keeps(index, key), kept);
      EXPECT_EQ(weights[key - 8], kept ? 1 : 0);
    }
  }
}

TEST_F(ScoreModTest, QueriesAttendToTheirInterval) {
  p.visibility = {2, 1, 0};
  const SequenceView s(p, 0);
  const QueryView query(p.visibility, s, 1);  // at position 5
  for (std::int32_t key = -3; key < 12; ++key)
    EXPECT_EQ(query.attends_to(key), key >= 3 && key <= 6) << key;
  const QueryView unused(p.visibility, s, 5);
  for (std::int32_t key = -3; key < 12; ++key) EXPECT_FALSE(unused.attends_to(key));
}

TEST(Scale, NegativeScaleNegatesQ) {
  EXPECT_FLOAT_EQ(Scale(0.5f).softmax_scale, 0.5f * log2_e);
  EXPECT_FALSE(Scale(0.5f).negate_q);
  EXPECT_FLOAT_EQ(Scale(-2).softmax_scale, 2 * log2_e);
  EXPECT_TRUE(Scale(-2).negate_q);
}

}  // namespace
}  // namespace rocflash::kernel
