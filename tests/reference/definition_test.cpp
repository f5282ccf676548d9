// The reference implementation against cases computed by hand and against a second implementation
// of the formula. Everything else is verified against the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.hpp"
#include "support/call.hpp"

namespace rocflash::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// One head, d = dv = 1, so that scores are q * k and can be chosen.
std::unique_ptr<Call> scalar_call(std::int64_t sq, std::int64_t sk) {
  auto c = std::make_unique<Call>(
      Size{.b = 1, .sq = sq, .sk = sk, .h = 1, .hk = 1, .d = 1, .dv = 1}, DType::f64);
  c->with_scale(1).backend(ROCFLASH_BACKEND_REFERENCE);
  return c;
}

TEST(Definition, TwoKeys) {
  auto c = scalar_call(1, 2);
  c->q.assign({1});
  c->k.assign({0, std::log(3.0)});
  c->v.assign({8, 16});
  c->with_s_dmask().expect_forward();
  EXPECT_NEAR(c->out.flat(0), 8 * 0.25 + 16 * 0.75, 1e-12);
  EXPECT_NEAR(c->lse.flat(0), std::log(4.0), 1e-6);
  EXPECT_NEAR(c->s_dmask.flat(0), 0.25, 1e-6);
  EXPECT_NEAR(c->s_dmask.flat(1), 0.75, 1e-6);
  // dout = 1: dp = v, mean = 14, ds = (0.25 * -6, 0.75 * 2)
  c->dout.assign({1});
  c->expect_backward();
  EXPECT_NEAR(c->dv.flat(0), 0.25, 1e-12);
  EXPECT_NEAR(c->dv.flat(1), 0.75, 1e-12);
  EXPECT_NEAR(c->dk.flat(0), -1.5, 1e-12);
  EXPECT_NEAR(c->dk.flat(1), 1.5, 1e-12);
  EXPECT_NEAR(c->dq.flat(0), 1.5 * std::log(3.0), 1e-12);
}

TEST(Definition, DefaultScaleIsOneOverTheRootOfTheHeadDim) {
  Call c({.b = 1, .sq = 1, .sk = 2, .h = 1, .hk = 1, .d = 4, .dv = 1}, DType::f64);
  c.backend(ROCFLASH_BACKEND_REFERENCE);
  c.q.fill(1);
  c.k.assign({0, 0, 0, 0, 1, 1, 1, 1});  // scores 0 and 4 / sqrt(4)
  c.v.assign({0, 1});
  c.expect_forward();
  EXPECT_NEAR(c.out.flat(0), 1 / (1 + std::exp(-2.0)), 1e-12);
}

TEST(Definition, CausalIsBottomRightAligned) {
  auto c = scalar_call(2, 4);
  c->problem.causal = 1;
  c->q.fill(0);
  c->v.assign({1, 2, 4, 8});
  c->expect_forward();
  EXPECT_NEAR(c->out.flat(0), 7.0 / 3, 1e-12);  // keys 0 to 2
  EXPECT_NEAR(c->out.flat(1), 15.0 / 4, 1e-12);
}

TEST(Definition, FirstOfMoreQueriesThanKeysAreFullyMasked) {
  auto c = scalar_call(3, 1);
  c->problem.causal = 1;
  c->v.assign({5});
  c->expect_forward();
  c->expect_backward();
  for (const std::int64_t i : {0, 1}) {
    EXPECT_EQ(c->out.flat(i), 0);
    EXPECT_EQ(c->lse.flat(i), infinity);
    EXPECT_EQ(c->dq.flat(i), 0);
  }
  EXPECT_EQ(c->out.flat(2), 5);
  EXPECT_NEAR(c->dv.flat(0), c->dout.flat(2), 1e-12);
}

TEST(Definition, WindowBoundsBothSides) {
  auto c = scalar_call(5, 5);
  c->with_window(1, 2);
  c->q.fill(0);
  c->v.assign({1, 2, 4, 8, 16});
  c->expect_forward();
  const double expected[] = {7.0 / 3, 15.0 / 4, 30.0 / 4, 28.0 / 3, 24.0 / 2};
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_NEAR(c->out.flat(i), expected[i], 1e-12) << i;
}

TEST(Definition, QueriesAttendToTheirOwnChunk) {
  auto c = scalar_call(4, 5);  // query positions 1 to 4; chunks {0, 1}, {2, 3}, {4}
  c->problem.attention_chunk = 2;
  c->q.fill(0);
  c->v.assign({1, 2, 4, 8, 16});
  c->expect_forward();
  const double expected[] = {1.5, 6, 6, 16};
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_NEAR(c->out.flat(i), expected[i], 1e-12) << i;
}

TEST(Definition, SoftcapIsScaledTanh) {
  auto c = scalar_call(1, 2);
  c->problem.softcap = 2;
  c->q.assign({1});
  c->k.assign({0, 3});
  c->v.assign({0, 1});
  c->expect_forward();
  EXPECT_NEAR(c->out.flat(0), 1 / (1 + std::exp(-2 * std::tanh(1.5))), 1e-12);
}

TEST(Definition, AlibiIsSubtractedAfterSoftcap) {
  auto c = scalar_call(1, 3);
  c->alibi = HostTensor(DType::f32, {1});
  c->alibi.assign({2});
  c->set_pointers();
  c->problem.softcap = 1;
  c->q.fill(0);
  c->expect_forward();
  EXPECT_NEAR(c->lse.flat(0), std::log(1 + std::exp(-2.0) + std::exp(-4.0)), 1e-6);
}

TEST(Definition, SinkIsOnlyInTheDenominator) {
  auto c = scalar_call(1, 1);
  c->with_sinks().sinks.assign({std::log(3.0)});
  c->q.fill(0);
  c->v.assign({8});
  c->dout.assign({1});
  c->expect_forward();
  c->expect_backward();
  EXPECT_NEAR(c->out.flat(0), 2, 1e-12);  // weights 1/4 and, for the sink, 3/4
  EXPECT_NEAR(c->lse.flat(0), std::log(4.0), 1e-6);
  EXPECT_NEAR(c->dsinks.flat(0), -0.75 * 2, 1e-6);
}

TEST(Definition, SinkIsTheLseOfAFullyMaskedRow) {
  auto c = scalar_call(1, 0);
  c->with_sinks().sinks.assign({0.5});
  c->expect_forward();
  c->expect_backward();
  EXPECT_EQ(c->out.flat(0), 0);
  EXPECT_NEAR(c->lse.flat(0), 0.5, 1e-6);
  EXPECT_EQ(c->dsinks.flat(0), 0);
}

TEST(Definition, DroppedWeightsAreNegativeInSDmask) {
  auto c = scalar_call(4, 16);
  c->with_dropout(0.5f, 11, 3).with_s_dmask();
  c->q.fill(0);
  c->v.fill(1);
  c->expect_forward();
  const Dropout pattern{0.5f, dropout_threshold(0.5f), 11, 3};
  for (std::int64_t i = 0; i < 4; ++i) {
    int kept = 0;
    for (std::int64_t j = 0; j < 16; ++j) {
      const bool keep = pattern.keeps(0, i, j);
      kept += keep;
      EXPECT_EQ(c->s_dmask.get({0, 0, i, j}), keep ? 1.0 / 16 : -1.0 / 16) << i << " " << j;
    }
    EXPECT_NEAR(c->out.flat(i), 2 * kept / 16.0, 1e-12);
  }
}

TEST(Definition, HeadsOfAGqaGroupShareTheirKeys) {
  Call c({.b = 1, .sq = 1, .sk = 1, .h = 6, .hk = 2, .d = 1, .dv = 1}, DType::f64);
  c.backend(ROCFLASH_BACKEND_REFERENCE);
  c.v.assign({10, 20});
  c.expect_forward();
  for (std::int64_t h = 0; h < 6; ++h) EXPECT_EQ(c.out.flat(h), h < 3 ? 10 : 20) << h;
}

TEST(Definition, EmptyTensors) {
  for (const Size size : {Size{.b = 0}, Size{.sq = 0}, Size{.sk = 0}, Size{.sq = 0, .sk = 0}}) {
    Call c(size);
    c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
    c.expect_backward();
    for (const double x : c.out.values()) EXPECT_EQ(x, 0);
    for (const double x : c.lse.values()) EXPECT_EQ(x, infinity);
    for (const double x : c.dk.values()) EXPECT_EQ(x, 0);
    for (const double x : c.dq.values()) EXPECT_EQ(x, 0);
  }
}

// The formula with all options at once, without the subtraction of the row max.
TEST(Definition, AgreesWithASecondImplementation) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Size s{.b = 2, .sq = 4, .sk = 6, .h = 4, .hk = 2, .d = 3, .dv = 2};
    Call c(s, DType::f64, seed);
    c.with_mask().with_alibi(true).with_bias().with_sinks().with_dropout(0.3f, seed, 5);
    c.with_window(3, 1).with_scale(0.8f).with_used_q({4, 3}).with_used_k({6, 4}).with_leftpad(
        {0, 1});
    c.with_s_dmask();
    c.problem.softcap = 2.5f;
    c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
    const Dropout pattern{0.3f, dropout_threshold(0.3f), seed, 5};
    const std::int64_t sq[] = {4, 3}, first[] = {0, 1}, sk[] = {6, 3};
    for (std::int64_t b = 0; b < s.b; ++b)
      for (std::int64_t h = 0; h < s.h; ++h)
        for (std::int64_t i = 0; i < sq[b]; ++i) {
          const std::int64_t position = i + sk[b] - sq[b];
          double sum = std::exp(c.sinks.flat(h)), out[2] = {0, 0};
          std::vector<double> e(6, 0.0);
          for (std::int64_t j = 0; j < sk[b]; ++j) {
            if (j < position - 3 || j > position + 1 || c.mask.get({b, h, i, j}) == 0) continue;
            double dot = 0;
            for (std::int64_t x = 0; x < s.d; ++x)
              dot += c.q.get({b, i, h, x}) * c.k.get({b, first[b] + j, h / 2, x});
            const double score = 2.5 * std::tanh(dot * double{0.8f} / 2.5) -
                                 c.alibi.get({b, h}) * static_cast<double>(std::abs(position - j)) +
                                 c.bias.get({b, h, i, j});
            e[static_cast<std::size_t>(j)] = std::exp(score);
            sum += std::exp(score);
          }
          for (std::int64_t j = 0; j < sk[b]; ++j) {
            const double p = e[static_cast<std::size_t>(j)] / sum;
            const bool keep = pattern.keeps(b * s.h + h, i, j);
            EXPECT_NEAR(c.s_dmask.get({b, h, i, j}), keep ? p : -p, 1e-6);
            for (int x = 0; x < 2 && keep; ++x)
              out[x] += p * c.v.get({b, first[b] + j, h / 2, x}) / (1 - double{0.3f});
          }
          for (int x = 0; x < 2; ++x) EXPECT_NEAR(c.out.get({b, i, h, x}), out[x], 1e-12);
          EXPECT_NEAR(c.lse.get({b, h, i}), std::log(sum), 1e-6);
        }
    for (std::int64_t h = 0; h < s.h; ++h) {
      EXPECT_EQ(c.out.get({1, 3, h, 0}), 0);  // not in use
      EXPECT_EQ(c.lse.get({1, h, 3}), infinity);
    }
  }
}

}  // namespace
}  // namespace rocflash::test
