// Overflow-checked sizes against 128-bit arithmetic.
#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <random>

namespace rocflash {
namespace {

__extension__ typedef __int128 Int128;
constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

// Small numbers, numbers around powers of two, and numbers of any number of bits, equally often.
std::int64_t draw(std::mt19937_64& random) {
  const std::int64_t power = std::int64_t{1} << random() % 63;
  switch (random() % 3) {
    case 0:
      return static_cast<std::int64_t>(random() % 5);
    case 1:
      return power - 1 + static_cast<std::int64_t>(random() % 3);
    default:
      return static_cast<std::int64_t>(random() >> (1 + random() % 63));
  }
}

void expect_equal(Size size, Int128 exact) {
  ASSERT_EQ(size.fits(), exact < largest);
  if (size.fits()) {
    ASSERT_EQ(size.value(), static_cast<std::int64_t>(exact));
  }
}

TEST(Size, IsExactOrOverflows) {
  std::mt19937_64 random(7);
  for (int n = 0; n < 100000; ++n) {
    const std::int64_t a = draw(random), b = draw(random), step = 1 + draw(random) % 4096;
    expect_equal(Size(a) + b, Int128{a} + b);
    expect_equal(Size(a) * b, Int128{a} * b);
    expect_equal(Size(a).rounded_up(step),
                 a == largest ? Int128{largest} : (Int128{a} + step - 1) / step * step);
  }
}

TEST(Size, OverflowIsSticky) {
  const Size huge = Size(std::int64_t{1} << 40) * (std::int64_t{1} << 40);
  EXPECT_FALSE(huge.fits());
  EXPECT_FALSE((huge + 1).fits());
  EXPECT_FALSE((huge * 3).fits());
  EXPECT_FALSE(huge.rounded_up(64).fits());
  EXPECT_EQ((huge * 0).value(), 0);
  EXPECT_EQ(huge.at_most(100), 100);
  EXPECT_FALSE(Size(-1).fits());
  EXPECT_FALSE(Size::of_bytes(std::size_t{1} << 63).fits());
}

}  // namespace
}  // namespace rocflash
