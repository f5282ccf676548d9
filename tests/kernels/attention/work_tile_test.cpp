// The mapping of workgroups to work tiles: each exactly once, the tiles of a head on one XCD, in
// LPT order.
#include "attention/work_tile.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "attention/work_tile_by_bh.hpp"

namespace rocflash::kernel {
namespace {

TEST(WorkTile, EveryBlockExactlyOnce) {
  for (const int xcds : {1, 3, 8}) {
    for (const int blocks : {1, 2, 7}) {
      const int heads = 5, batch = 3;
      for (const int bh_interleave : {1, 4, 15}) {
        const TileSchedulerParams work{blocks, blocks * heads * batch, xcds, bh_interleave};
        std::set<std::tuple<int, int, int>> computed;
        for (int workgroup = 0; workgroup < work.workgroups; ++workgroup) {
          const WorkTile tile(work, heads, workgroup);
          EXPECT_TRUE(tile.batch >= 0 && tile.batch < batch && tile.head >= 0 &&
                      tile.head < heads && tile.block >= 0 && tile.block < blocks);
          computed.insert({tile.batch, tile.head, tile.block});
        }
        EXPECT_EQ(computed.size(), static_cast<std::size_t>(work.workgroups));
      }
    }
  }
}

TEST(WorkTile, ByBhEqualsTheGeneralMapping) {
  for (const int xcds : {1, 3, 8}) {
    for (const int blocks : {1, 2, 7}) {
      const int heads = 5;
      for (const int bh_interleave : {1, 4}) {
        const TileSchedulerParams work{blocks, blocks * heads * 3, xcds, bh_interleave};
        for (int workgroup = 0; workgroup < work.workgroups; ++workgroup) {
          const WorkTile tile(work, heads, workgroup),
              by_bh = work_tile_by_bh(work, heads, workgroup);
          EXPECT_EQ(std::tuple(tile.batch, tile.head, tile.block),
                    std::tuple(by_bh.batch, by_bh.head, by_bh.block));
        }
      }
    }
  }
}

TEST(WorkTile, LastQueriesOfAHeadAreFirst) {
  const TileSchedulerParams work{4, 8, 1};
  EXPECT_EQ(WorkTile(work, 2, 0).block, 3);
  EXPECT_EQ(WorkTile(work, 2, 3).block, 0);
  EXPECT_EQ(WorkTile(work, 2, 3).head, 0);
  EXPECT_EQ(WorkTile(work, 2, 4).head, 1);
}

// Four heads, of which three are interleaved: their last blocks first, then the fourth head.
TEST(WorkTile, LongestBlocksOfInterleavedSlicesAreFirst) {
  const TileSchedulerParams work{2, 8, 1, 3};
  const int heads[] = {0, 1, 2, 0, 1, 2, 3, 3}, blocks[] = {1, 1, 1, 0, 0, 0, 1, 0};
  for (int workgroup = 0; workgroup < work.workgroups; ++workgroup) {
    EXPECT_EQ(WorkTile(work, 4, workgroup).head, heads[workgroup]);
    EXPECT_EQ(WorkTile(work, 4, workgroup).block, blocks[workgroup]);
  }
}

// Workgroups are dispatched to XCDs round-robin; those of one (batch, head) slice share an XCD's
// L2.
TEST(WorkTile, AHeadStaysOnOneXcd) {
  const int xcds = 8, heads = 16, blocks = 4;
  const TileSchedulerParams work{blocks, heads * blocks, xcds};
  for (int workgroup = 0; workgroup < work.workgroups; ++workgroup) {
    const WorkTile tile(work, heads, workgroup);
    EXPECT_EQ(workgroup % xcds, tile.head / 2);
  }
}

}  // namespace
}  // namespace rocflash::kernel
