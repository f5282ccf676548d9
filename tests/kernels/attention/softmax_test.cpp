// The online softmax, one query, against the sum done at once in double.
#include "attention/softmax.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace rocflash::kernel {
namespace {

// Scores in powers of two, a few at a time, with values to be averaged.
struct Outcome {
  double out, lse;
};

Outcome online(const std::vector<float>& scores, const std::vector<float>& values, std::size_t tile,
               bool sink, float logit) {
  OnlineSoftmax softmax;
  float out = 0;
  for (std::size_t begin = 0; begin < scores.size(); begin += tile) {
    const std::size_t end = std::min(begin + tile, scores.size());
    float largest = -infinity;
    for (std::size_t n = begin; n < end; ++n) largest = std::fmax(largest, scores[n]);
    if (softmax.behind(largest)) out *= softmax.follow(largest);
    for (std::size_t n = begin; n < end; ++n) {
      const float weight = arch::exp2(scores[n] - softmax.base());
      EXPECT_FALSE(weight > std::exp2(OnlineSoftmax::slack));
      softmax.sum += weight;
      out += weight * values[n];
    }
  }
  const Normaliser n = normalise(softmax.reference, softmax.sum, sink, logit);
  return {out * n.factor, n.lse};
}

Outcome at_once(const std::vector<float>& scores, const std::vector<float>& values, bool sink,
                float logit) {
  double total = sink ? std::exp(logit) : 0, out = 0;
  for (std::size_t n = 0; n < scores.size(); ++n) {
    total += std::exp2(scores[n]);
    out += std::exp2(scores[n]) * values[n];
  }
  return {total > 0 ? out / total : 0, total > 0 ? std::log(total) : infinity};
}

TEST(OnlineSoftmax, AgreesWithTheSumAtOnce) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int n = 0; n < 500; ++n) {
    std::vector<float> scores(1 + random() % 100), values(scores.size());
    const float spread = n % 3 == 0 ? 1.0f : n % 3 == 1 ? 10.0f : 30.0f;
    for (float& s : scores) s = random() % 5 == 0 ? -infinity : spread * normal(random);
    for (float& v : values) v = normal(random);
    const bool sink = n % 2;
    const float logit = 3 * normal(random);
    const Outcome got = online(scores, values, 1 + random() % 20, sink, logit);
    const Outcome want = at_once(scores, values, sink, logit);
    EXPECT_NEAR(got.out, want.out, 1e-5);
    if (std::isinf(want.lse)) {
      EXPECT_EQ(got.lse, want.lse);
    } else {
      EXPECT_NEAR(got.lse, want.lse, 1e-5 * (1 + std::fabs(want.lse)));
    }
  }
}

TEST(OnlineSoftmax, TheSinkTakesItsShare) {
  const std::vector<float> scores{1, 2, 3}, values{1, -1, 2};
  for (const float logit : {-50.0f, 0.0f, 2.5f, 40.0f}) {
    const Outcome got = online(scores, values, 2, true, logit),
                  want = at_once(scores, values, true, logit);
    EXPECT_NEAR(got.out, want.out, 1e-6);
    EXPECT_NEAR(got.lse, want.lse, 1e-5 * (1 + std::fabs(want.lse)));
  }
}

TEST(OnlineSoftmax, AQueryThatSeesNothing) {
  const Outcome nothing = online({-infinity, -infinity}, {1, 2}, 1, false, 0);
  EXPECT_EQ(nothing.out, 0);
  EXPECT_EQ(nothing.lse, infinity);
  const Outcome only_sink = online({-infinity}, {1}, 1, true, 0.5f);
  EXPECT_EQ(only_sink.out, 0);
  EXPECT_NEAR(only_sink.lse, 0.5, 1e-6);
}

TEST(OnlineSoftmax, NotANumberStaysOne) {
  EXPECT_TRUE(std::isnan(online({1, NAN, 2}, {1, 1, 1}, 2, false, 0).out));
  EXPECT_TRUE(std::isnan(online({1, infinity, 2}, {1, 1, 1}, 2, false, 0).lse));
}

// f32's lse is as exact as its last bit, whatever the size of the sum; what is not finite stays so.
TEST(OnlineSoftmax, NaturalLseKeepsTheLastBit) {
  for (float total = 0x1p-20f; total < 0x1p30f; total *= 1.37f) {
    for (const float reference : {0.0f, -3.0f, 20.0f}) {
      const double want = reference + std::log(static_cast<double>(total));
      const double unit = std::fmax(std::fabs(want), 1.0) * 0x1p-23;
      EXPECT_NEAR(NaturalPowers::lse(reference, total), want, unit) << total;
    }
  }
  EXPECT_EQ(NaturalPowers::lse(1, infinity), infinity);
  EXPECT_TRUE(std::isnan(NaturalPowers::lse(1, std::nanf(""))));
}

}  // namespace
}  // namespace rocflash::kernel
