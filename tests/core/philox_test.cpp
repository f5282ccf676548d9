// The dropout generator: the published known answers of Philox 4x32-10, and the assignment of its
// bits to weights.
#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace rocflash {
namespace {

void expect_words(const PhiloxCounter& got, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                  std::uint32_t d) {
  EXPECT_EQ(got.word[0], a);
  EXPECT_EQ(got.word[1], b);
  EXPECT_EQ(got.word[2], c);
  EXPECT_EQ(got.word[3], d);
}

TEST(Philox, PublishedKnownAnswers) {
  expect_words(philox({{0, 0, 0, 0}}, {{0, 0}}), 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu,
               0x9b00dbd8u);
  const std::uint32_t ones = 0xffffffffu;
  expect_words(philox({{ones, ones, ones, ones}}, {{ones, ones}}), 0x408f276du, 0x41c83b0eu,
               0xa20bc7c6u, 0x6d5451fdu);
  expect_words(
      philox({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, {{0xa4093822u, 0x299f31d0u}}),
      0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u);
}

Dropout dropout(float p, std::uint64_t seed = 1, std::uint64_t offset = 2) {
  return {p, dropout_threshold(p), seed, offset};
}

TEST(Dropout, ThresholdIsTheNearestStep) {
  EXPECT_EQ(dropout_threshold(0.0f), 65536u);
  EXPECT_EQ(dropout_threshold(0.5f), 32768u);
  EXPECT_EQ(dropout_threshold(0.25f), 49152u);
  EXPECT_EQ(dropout_threshold(0.1f), 58982u);  // 0.9 * 65536 = 58982.4
  EXPECT_EQ(dropout_threshold(1.0f - 1.0f / 65536.0f), 1u);
  EXPECT_EQ(dropout_threshold(0x1.fffffep-1f), 0u);  // the largest float below 1 keeps nothing
}

TEST(Dropout, EightKeysShareOneDrawSixteenBitsEach) {
  const Dropout d = dropout(0.5f, 0x1234567890abcdefu, 0xfedcba0987654321u);
  for (std::int64_t key = 0; key < 64; ++key) {
    const PhiloxCounter draw = philox({{static_cast<std::uint32_t>(key / 8), 77, 5, 0x87654321u}},
                                      {{0x90abcdefu, 0x12345678u ^ 0xfedcba09u}});
    std::uint16_t half[8];
    for (int n = 0; n < 8; ++n)
      half[n] = static_cast<std::uint16_t>(n % 2 == 0 ? draw.word[n / 2] & 0xffffu
                                                      : draw.word[n / 2] >> 16);
    EXPECT_EQ(d.keeps(5, 77, key), half[key % 8] < 32768) << key;
  }
}

TEST(Dropout, DroppedFractionIsP) {
  constexpr int slices = 8, queries = 128, keys = 256;
  for (const float p : {0.01f, 0.1f, 0.3f, 0.5f, 0.9f}) {
    const Dropout d = dropout(p);
    int dropped = 0;
    for (int bh = 0; bh < slices; ++bh)
      for (int i = 0; i < queries; ++i)
        for (int j = 0; j < keys; ++j) dropped += !d.keeps(bh, i, j);
    const double n = slices * queries * keys;
    const double sigma = std::sqrt(double{p} * (1 - double{p}) / n);
    EXPECT_NEAR(dropped / n, double{p}, 4 * sigma + 1.0 / dropout_steps) << p;
  }
}

// A weight that is kept at a higher p is kept at a lower one: the bits do not depend on p.
TEST(Dropout, PatternsNest) {
  const Dropout low = dropout(0.2f), high = dropout(0.6f);
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 64; ++j) {
      if (high.keeps(3, i, j)) {
        EXPECT_TRUE(low.keeps(3, i, j));
      }
    }
}

// Patterns that differ in seed, offset, (batch, head) slice, query or key are independent: they
// agree in about half of the weights.
TEST(Dropout, EverySeedOffsetAndPositionHasItsOwnPattern) {
  const auto pattern = [](const Dropout& d, std::int64_t bh, std::int64_t query, std::int64_t key) {
    std::vector<bool> kept;
    for (int i = 0; i < 32; ++i)
      for (int j = 0; j < 64; ++j) kept.push_back(d.keeps(bh, query + i, key + j));
    return kept;
  };
  const std::uint64_t high = std::uint64_t{1} << 32;
  const std::vector<std::vector<bool>> all = {pattern(dropout(0.5f, 1, 2), 0, 0, 0),
                                              pattern(dropout(0.5f, 2, 2), 0, 0, 0),
                                              pattern(dropout(0.5f, 1 + high, 2), 0, 0, 0),
                                              pattern(dropout(0.5f, 1, 3), 0, 0, 0),
                                              pattern(dropout(0.5f, 1, 2 + 2 * high), 0, 0, 0),
                                              pattern(dropout(0.5f, 1, 2), 1, 0, 0),
                                              pattern(dropout(0.5f, 1, 2), 0, 64, 0),
                                              pattern(dropout(0.5f, 1, 2), 0, 0, 64),
                                              pattern(dropout(0.5f, 1, 2), 65536, 0, 0),
                                              pattern(dropout(0.5f, 1, 2), 0, 1 << 20, 0),
                                              pattern(dropout(0.5f, 1, 2), 0, 0, 1 << 20)};
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      int same = 0;
      for (std::size_t n = 0; n < all[a].size(); ++n) same += all[a][n] == all[b][n];
      EXPECT_NEAR(same, 1024, 150) << a << " and " << b;
    }
}

}  // namespace
}  // namespace rocflash
