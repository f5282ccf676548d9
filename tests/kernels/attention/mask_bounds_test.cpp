// Mask bounds in 32 bits equal those of core/visibility.hpp.
#include "attention/mask_bounds.hpp"

#include <gtest/gtest.h>

namespace rocflash::kernel {
namespace {

TEST(MaskBounds, EqualVisibility) {
  for (const std::int64_t left : {-1l, 0l, 3l, 17l, 1l << 40}) {
    for (const std::int64_t right : {-1l, 0l, 5l, 1l << 40}) {
      for (const std::int64_t chunk : {0l, 1l, 7l, 64l}) {
        for (const std::int32_t sq : {1, 9, 40}) {
          for (const std::int32_t sk : {0, 1, 9, 33}) {
            const core::Visibility v{left, right, chunk};
            const MaskBounds bounds(v, sq, sk);
            for (std::int32_t i = 0; i < sq; ++i) {
              const core::Range keys = core::visible_keys(v, i, sq, sk);
              const core::Range visible{bounds.begin(i), bounds.end(i)};
              ASSERT_EQ(visible.empty(), keys.empty()) << left << right << chunk << sq << sk << i;
              if (!keys.empty())
                ASSERT_EQ(visible, keys) << left << right << chunk << sq << sk << i;
            }
          }
        }
      }
    }
  }
}

// Both bounds are monotonic in the query, which the bounds of query blocks rely on.
TEST(MaskBounds, AreMonotonic) {
  for (const std::int64_t chunk : {0l, 7l}) {
    const MaskBounds bounds({4, 2, chunk}, 40, 20);
    for (std::int32_t i = 1; i < 40; ++i) {
      EXPECT_LE(bounds.begin(i - 1), bounds.begin(i));
      EXPECT_LE(bounds.end(i - 1), bounds.end(i));
    }
  }
}

TEST(MaskBounds, LongSequencesDoNotOverflow) {
  constexpr auto most = static_cast<std::int32_t>(max_mask_bound);
  const MaskBounds causal({-1, 0, 0}, 1, most);
  EXPECT_EQ(causal.end(0), most);
  const MaskBounds window({most, 0, most}, most, 1);
  EXPECT_EQ(window.end(most - 1), 1);
  EXPECT_LE(window.end(0), 0);
}

}  // namespace
}  // namespace rocflash::kernel
