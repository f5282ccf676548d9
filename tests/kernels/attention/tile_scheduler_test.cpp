// The persistent tile scheduler: every work tile is computed once, and under a causal mask CTAs
// have about the same work.
#include "attention/tile_scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attention/work_tile.hpp"

namespace rocflash::kernel {
namespace {

TEST(TileScheduler, EveryWorkTileOnce) {
  for (const bool pairs : {false, true}) {
    for (const std::int32_t blocks : {1, 2, 5, 11, 16}) {
      for (const std::int32_t slices : {1, 3, 13, 128}) {
        for (const std::int32_t bh_interleave : {1, 4, 8, 100}) {
          for (const std::int32_t ctas : {1, 3, 7, 132}) {
            const TileSchedulerParams work{
                .blocks = blocks, .workgroups = blocks * slices, .bh_interleave = bh_interleave};
            std::multiset<std::int32_t> computed;
            for (std::int32_t cta = 0; cta < ctas; ++cta)
              for (TileScheduler scheduler(work, pairs, cta, ctas); scheduler.more();
                   scheduler.next())
                computed.insert(scheduler.number());
            ASSERT_EQ(computed.size(), static_cast<std::size_t>(work.workgroups));
            for (std::int32_t n = 0; n < work.workgroups; ++n) ASSERT_EQ(computed.count(n), 1u);
          }
        }
      }
    }
  }
}

// Under a causal mask the work of a block grows with its index; all pairs have the same sum.
TEST(TileScheduler, PairsHaveEqualWork) {
  const TileSchedulerParams work{.blocks = 16, .workgroups = 16 * 8, .bh_interleave = 4};
  for (std::int32_t cta = 0; cta < 64; ++cta) {
    TileScheduler scheduler(work, true, cta, 64);
    const WorkTile longer(work, 2, scheduler.number());
    scheduler.next();
    ASSERT_TRUE(scheduler.more());
    const WorkTile shorter(work, 2, scheduler.number());
    EXPECT_EQ(longer.block + shorter.block, 15);
    scheduler.next();
    EXPECT_FALSE(scheduler.more());
  }
}

// The pairs of the last wave are split between CTAs that would be idle.
TEST(TileScheduler, PairsOfTheLastWaveAreSplit) {
  const TileSchedulerParams work{
      .blocks = 11, .workgroups = 11 * 128, .bh_interleave = 64};  // 704 pairs
  std::int32_t most = 0;
  for (std::int32_t cta = 0; cta < 132; ++cta) {
    std::int32_t count = 0;
    for (TileScheduler scheduler(work, true, cta, 132); scheduler.more(); scheduler.next()) ++count;
    most = std::max(most, count);
  }
  EXPECT_EQ(most, 2 * 5 + 1);
}

}  // namespace
}  // namespace rocflash::kernel
