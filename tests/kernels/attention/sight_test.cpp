// Visible keys in 32 bits are those of core/visibility.hpp.
#include "attention/sight.hpp"

#include <gtest/gtest.h>

namespace rocflash::kernel {
namespace {

TEST(Sight, IsWhatVisibilitySays) {
  for (const std::int64_t left : {-1l, 0l, 3l, 17l, 1l << 40}) {
    for (const std::int64_t right : {-1l, 0l, 5l, 1l << 40}) {
      for (const std::int64_t chunk : {0l, 1l, 7l, 64l}) {
        for (const std::int32_t sq : {1, 9, 40}) {
          for (const std::int32_t sk : {0, 1, 9, 33}) {
            const core::Visibility v{left, right, chunk};
            const Sight sight(v, sq, sk);
            for (std::int32_t i = 0; i < sq; ++i) {
              const core::Range keys = core::visible_keys(v, i, sq, sk);
              const core::Range seen{sight.begin(i), sight.end(i)};
              ASSERT_EQ(seen.empty(), keys.empty()) << left << right << chunk << sq << sk << i;
              if (!keys.empty()) ASSERT_EQ(seen, keys) << left << right << chunk << sq << sk << i;
            }
          }
        }
      }
    }
  }
}

// The ends never move left as queries go on, as those of blocks rely on.
TEST(Sight, EndsRise) {
  for (const std::int64_t chunk : {0l, 7l}) {
    const Sight sight({4, 2, chunk}, 40, 20);
    for (std::int32_t i = 1; i < 40; ++i) {
      EXPECT_LE(sight.begin(i - 1), sight.begin(i));
      EXPECT_LE(sight.end(i - 1), sight.end(i));
    }
  }
}

// Far places do not overflow.
TEST(Sight, LongSequences) {
  constexpr auto most = static_cast<std::int32_t>(longest_sight);
  const Sight causal({-1, 0, 0}, 1, most);
  EXPECT_EQ(causal.end(0), most);
  const Sight behind({most, 0, most}, most, 1);
  EXPECT_EQ(behind.end(most - 1), 1);
  EXPECT_LE(behind.end(0), 0);
}

}  // namespace
}  // namespace rocflash::kernel
