// The online softmax of one query against a softmax over all keys at once in double.
#include "attention/online_softmax.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace rocflash::kernel {
namespace {

struct Result {
  double out, lse;
};

// Scores are in the log2 domain and come in tiles of `tile` keys.
Result online_softmax(const std::vector<float>& scores, const std::vector<float>& values,
                      std::size_t tile, bool sink, float logit) {
  OnlineSoftmax softmax;
  float out = 0;
  for (std::size_t begin = 0; begin < scores.size(); begin += tile) {
    const std::size_t end = std::min(begin + tile, scores.size());
    float largest = -infinity;
    for (std::size_t n = begin; n < end; ++n) largest = std::fmax(largest, scores[n]);
    if (softmax.needs_rescale(largest)) out *= softmax.rescale(largest);
    for (std::size_t n = begin; n < end; ++n) {
      const float weight = arch::exp2(scores[n] - softmax.base());
      EXPECT_FALSE(weight > std::exp2(OnlineSoftmax::rescale_threshold));
      softmax.sum += weight;
      out += weight * values[n];
    }
  }
  const Normalizer n = normalize(softmax.row_max, softmax.sum, sink, logit);
  return {out * n.factor, n.lse};
}

Result direct_softmax(const std::vector<float>& scores, const std::vector<float>& values, bool sink,
                      float logit) {
  double total = sink ? std::exp(logit) : 0, out = 0;
  for (std::size_t n = 0; n < scores.size(); ++n) {
    total += std::exp2(scores[n]);
    out += std::exp2(scores[n]) * values[n];
  }
  return {total > 0 ? out / total : 0, total > 0 ? std::log(total) : infinity};
}

TEST(OnlineSoftmax, AgreesWithDirectSoftmax) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int n = 0; n < 500; ++n) {
    std::vector<float> scores(1 + random() % 100), values(scores.size());
    const float spread = n % 3 == 0 ? 1.0f : n % 3 == 1 ? 10.0f : 30.0f;
    for (float& s : scores) s = random() % 5 == 0 ? -infinity : spread * normal(random);
    for (float& v : values) v = normal(random);
    const bool sink = n % 2;
    const float logit = 3 * normal(random);
    const Result got = online_softmax(scores, values, 1 + random() % 20, sink, logit);
    const Result expected = direct_softmax(scores, values, sink, logit);
    EXPECT_NEAR(got.out, expected.out, 1e-5);
    if (std::isinf(expected.lse)) {
      EXPECT_EQ(got.lse, expected.lse);
    } else {
      EXPECT_NEAR(got.lse, expected.lse, 1e-5 * (1 + std::fabs(expected.lse)));
    }
  }
}

// Equal scores up to the largest f32: each key has the same weight, and the lse is the score.
TEST(OnlineSoftmax, LargeScoresInTheNaturalLogDomain) {
  for (const float score : {-3.4e38f, -3e9f, 3e9f, 3.4e38f}) {
    GenericSoftmax softmax;
    EXPECT_TRUE(softmax.needs_rescale(score));
    softmax.rescale(score);
    for (int n = 0; n < 4; ++n) softmax.sum += FastNaturalLogDomain::exp(score - softmax.base());
    EXPECT_EQ(softmax.sum, 4);
    EXPECT_FALSE(softmax.needs_rescale(score));
    Normalizer n = normalize<FastNaturalLogDomain>(softmax.row_max, softmax.sum, false, 0);
    EXPECT_EQ(n.factor, 0.25f);
    EXPECT_EQ(n.lse, score);
    // A sink equal to the scores gets a share of 1/5; one far above gets all, one far below
    // nothing.
    EXPECT_EQ(normalize<FastNaturalLogDomain>(softmax.row_max, softmax.sum, true, score).factor,
              0.2f);
    n = normalize<FastNaturalLogDomain>(softmax.row_max, softmax.sum, true, -score);
    EXPECT_EQ(n.factor, score < 0 ? 0 : 0.25f);
    EXPECT_EQ(n.lse, std::fabs(score));
  }
}

// From 2^24 on, the rounding of the running max shifts exponents.
TEST(OnlineSoftmax, LargeRunningMaxShiftsExponents) {
  for (const float x : {0x1p24f, -0x1p24f, -3e38f, infinity}) EXPECT_TRUE(shifts_exponents(x));
  for (const float x : {0.0f, 0x1p23f, -0x1p23f, -infinity}) EXPECT_FALSE(shifts_exponents(x));
}

TEST(OnlineSoftmax, SinkIsPartOfTheDenominator) {
  const std::vector<float> scores{1, 2, 3}, values{1, -1, 2};
  for (const float logit : {-50.0f, 0.0f, 2.5f, 40.0f}) {
    const Result got = online_softmax(scores, values, 2, true, logit),
                 expected = direct_softmax(scores, values, true, logit);
    EXPECT_NEAR(got.out, expected.out, 1e-6);
    EXPECT_NEAR(got.lse, expected.lse, 1e-5 * (1 + std::fabs(expected.lse)));
  }
}

TEST(OnlineSoftmax, FullyMaskedRow) {
  const Result masked = online_softmax({-infinity, -infinity}, {1, 2}, 1, false, 0);
  EXPECT_EQ(masked.out, 0);
  EXPECT_EQ(masked.lse, infinity);
  const Result only_sink = online_softmax({-infinity}, {1}, 1, true, 0.5f);
  EXPECT_EQ(only_sink.out, 0);
  EXPECT_NEAR(only_sink.lse, 0.5, 1e-6);
}

TEST(OnlineSoftmax, NanPropagates) {
  EXPECT_TRUE(std::isnan(online_softmax({1, NAN, 2}, {1, 1, 1}, 2, false, 0).out));
  EXPECT_TRUE(std::isnan(online_softmax({1, infinity, 2}, {1, 1, 1}, 2, false, 0).lse));
}

// The lse of f32 has an error of at most one ulp for any row sum; non-finite sums stay non-finite.
TEST(OnlineSoftmax, NaturalLseIsAccurateToOneUlp) {
  for (float total = 0x1p-20f; total < 0x1p30f; total *= 1.37f) {
    for (const float row_max : {0.0f, -3.0f, 20.0f}) {
      const double expected = row_max + std::log(static_cast<double>(total));
      const double ulp = std::fmax(std::fabs(expected), 1.0) * 0x1p-23;
      EXPECT_NEAR(NaturalLogDomain::lse(row_max, total), expected, ulp) << total;
    }
  }
  EXPECT_EQ(NaturalLogDomain::lse(1, infinity), infinity);
  EXPECT_TRUE(std::isnan(NaturalLogDomain::lse(1, std::nanf(""))));
}

}  // namespace
}  // namespace rocflash::kernel
