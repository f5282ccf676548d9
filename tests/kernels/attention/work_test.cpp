// Which workgroup does what: each piece of work exactly once, and neighbours on one partition.
#include "attention/work_by_plane.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace rocflash::kernel {
namespace {

TEST(Work, EveryBlockExactlyOnce) {
  for (const int partitions : {1, 3, 8}) {
    for (const int blocks : {1, 2, 7}) {
      const int heads = 5, batch = 3;
      for (const int together : {1, 4, 15}) {
        const Work work{blocks, blocks * heads * batch, partitions, together};
        std::set<std::tuple<int, int, int>> seen;
        for (int group = 0; group < work.groups; ++group) {
          const WorkItem item(work, heads, group);
          EXPECT_TRUE(item.batch >= 0 && item.batch < batch && item.head >= 0 &&
                      item.head < heads && item.block >= 0 && item.block < blocks);
          seen.insert({item.batch, item.head, item.block});
        }
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(work.groups));
      }
    }
  }
}

TEST(Work, ByPlaneIsTheSameWithFewerDivisions) {
  for (const int partitions : {1, 3, 8}) {
    for (const int blocks : {1, 2, 7}) {
      const int heads = 5;
      const Work work{blocks, blocks * heads * 3, partitions};
      for (int group = 0; group < work.groups; ++group) {
        const WorkItem item(work, heads, group), same = work_by_plane(work, heads, group);
        EXPECT_EQ(std::tuple(item.batch, item.head, item.block),
                  std::tuple(same.batch, same.head, same.block));
      }
    }
  }
}

TEST(Work, LastQueriesOfAHeadGoFirst) {
  const Work work{4, 8, 1};
  EXPECT_EQ(WorkItem(work, 2, 0).block, 3);
  EXPECT_EQ(WorkItem(work, 2, 3).block, 0);
  EXPECT_EQ(WorkItem(work, 2, 3).head, 0);
  EXPECT_EQ(WorkItem(work, 2, 4).head, 1);
}

// Four heads, three of which take turns: their last blocks first, then the fourth head.
TEST(Work, LongestBlocksOfPlanesTogetherGoFirst) {
  const Work work{2, 8, 1, 3};
  const int heads[] = {0, 1, 2, 0, 1, 2, 3, 3}, blocks[] = {1, 1, 1, 0, 0, 0, 1, 0};
  for (int group = 0; group < work.groups; ++group) {
    EXPECT_EQ(WorkItem(work, 4, group).head, heads[group]);
    EXPECT_EQ(WorkItem(work, 4, group).block, blocks[group]);
  }
}

// Workgroups go to partitions in turn; those of one (sequence, head) are to meet on one of them.
TEST(Work, AHeadStaysOnItsPartition) {
  const int partitions = 8, heads = 16, blocks = 4;
  const Work work{blocks, heads * blocks, partitions};
  for (int group = 0; group < work.groups; ++group) {
    const WorkItem item(work, heads, group);
    EXPECT_EQ(group % partitions, item.head / 2);
  }
}

}  // namespace
}  // namespace rocflash::kernel
