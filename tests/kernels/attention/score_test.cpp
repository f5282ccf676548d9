// How device code shapes a score and deals out dropout, against the definition.
#include "attention/exact.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace rocflash::kernel {
namespace {

struct Fixture : testing::Test {
  Fixture() {
    p.heads = p.kv_heads = 2;
    p.lengths.batch = 1;
    p.lengths.rows_q = p.max_q = 5;
    p.lengths.rows_k = p.max_k = 9;
    p.scale = -0.5f;
  }
  float shaped(std::int32_t index, std::int32_t key, float product) const {
    const SequenceView s(p, 0);
    const QueryView query(p.visibility, s, index);
    float score = product;
    ScoreShape(p, s, 1).shape<1>(
        query, [&](int) -> float& { return score; }, [&](int) { return key; });
    return score * ln_2;
  }
  Problem p;
};

TEST_F(Fixture, ScaleAndSoftcap) {
  EXPECT_FLOAT_EQ(shaped(0, 0, 3), 1.5f);  // the schedule has turned the sign of q
  p.softcap = 2;
  EXPECT_NEAR(shaped(0, 0, 3), 2 * std::tanh(0.75), 1e-6);
  EXPECT_NEAR(shaped(0, 0, 1e6f), 2, 1e-6);
  EXPECT_NEAR(shaped(0, 0, -1e6f), -2, 1e-6);
}

TEST_F(Fixture, Distance) {
  const float slopes[] = {1, 0.25f};
  p.alibi = {reinterpret_cast<std::byte*>(const_cast<float*>(slopes)), DType::f32, 0, 1};
  EXPECT_FLOAT_EQ(shaped(1, 8, 0), -0.25f * 3);  // query 1 of 5 stands at key 5 of 9
  EXPECT_FLOAT_EQ(shaped(1, 0, 0), -0.25f * 5);
}

TEST_F(Fixture, BiasAndMask) {
  std::vector<float> bias(5 * 9);
  for (std::size_t n = 0; n < bias.size(); ++n) bias[n] = static_cast<float>(n);
  std::vector<std::uint8_t> mask(9, 1);
  mask[4] = 0;
  p.bias = {reinterpret_cast<std::byte*>(bias.data()), DType::f32, 0, 0, 9, 1};
  EXPECT_NEAR(shaped(2, 3, 2), 1 + 21, 1e-5);
  EXPECT_NEAR(shaped(7, 12, 0), 44,
              1e-5);  // no such row or key: the last one's, in memory that is there
  p.mask = {reinterpret_cast<std::byte*>(mask.data()), DType::boolean, 0, 0, 0, 1};
  EXPECT_EQ(shaped(2, 4, 2), -infinity);
  EXPECT_NEAR(shaped(2, 3, 2), 1 + 21, 1e-5);
}

TEST_F(Fixture, DropoutIsTheHosts) {
  p.dropout = {0.4f, dropout_threshold(0.4f), 0x123456789abcdefull, 77};
  const SequenceView s(p, 0);
  const ScoreShape shape(p, s, 1);
  for (std::int32_t index = 0; index < 5; ++index) {
    const QueryView query(p.visibility, s, index);
    float weights[16];
    for (float& w : weights) w = 1;
    shape.drop<16, 8>(
        query, [&](int n) -> float& { return weights[n]; }, [](int n) { return 8 + n; });
    for (std::int32_t key = 8; key < 24; ++key) {
      const bool kept = p.dropout.keeps(1, index, key);
      EXPECT_EQ(shape.keeps(query, key), kept);
      EXPECT_EQ(weights[key - 8], kept ? 1 : 0);
    }
  }
}

TEST_F(Fixture, AQuerySeesItsInterval) {
  p.visibility = {2, 1, 0};
  const SequenceView s(p, 0);
  const QueryView query(p.visibility, s, 1);  // stands at key 5
  for (std::int32_t key = -3; key < 12; ++key)
    EXPECT_EQ(query.sees(key), key >= 3 && key <= 6) << key;
  const QueryView unused(p.visibility, s, 5);
  for (std::int32_t key = -3; key < 12; ++key) EXPECT_FALSE(unused.sees(key));
}

TEST(Scale, IsPositive) {
  EXPECT_FLOAT_EQ(Scale(0.5f).unit, 0.5f * log2_e);
  EXPECT_FALSE(Scale(0.5f).turn_sign);
  EXPECT_FLOAT_EQ(Scale(-2).unit, 2 * log2_e);
  EXPECT_TRUE(Scale(-2).turn_sign);
}

}  // namespace
}  // namespace rocflash::kernel
