// Workgroups that stay: they take every block once, and under a causal mask about the same work.
#include "attention/turns.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attention/work.hpp"

namespace rocflash::kernel {
namespace {

// Whatever the sizes, workgroups that stay take each block once.
TEST(Turns, EveryBlockOnce) {
  for (const bool pairs : {false, true}) {
    for (const std::int32_t blocks : {1, 2, 5, 11, 16}) {
      for (const std::int32_t planes : {1, 3, 13, 128}) {
        for (const std::int32_t together : {1, 4, 8, 100}) {
          for (const std::int32_t groups : {1, 3, 7, 132}) {
            const Work work{
                .blocks = blocks, .groups = blocks * planes, .planes_together = together};
            std::multiset<std::int32_t> taken;
            for (std::int32_t worker = 0; worker < groups; ++worker)
              for (BlockTurns turn(work, pairs, worker, groups); turn.more(); turn.next())
                taken.insert(turn.number());
            ASSERT_EQ(taken.size(), static_cast<std::size_t>(work.groups));
            for (std::int32_t n = 0; n < work.groups; ++n) ASSERT_EQ(taken.count(n), 1u);
          }
        }
      }
    }
  }
}

// Under a causal mask a block's work grows with its worker; pairs have the same sum.
TEST(Turns, PairsAreEqual) {
  const Work work{.blocks = 16, .groups = 16 * 8, .planes_together = 4};
  for (std::int32_t worker = 0; worker < 64; ++worker) {
    BlockTurns turn(work, true, worker, 64);
    const WorkItem longer(work, 2, turn.number());
    turn.next();
    ASSERT_TRUE(turn.more());
    const WorkItem shorter(work, 2, turn.number());
    EXPECT_EQ(longer.block + shorter.block, 15);
    turn.next();
    EXPECT_FALSE(turn.more());
  }
}

// What is left of the pairs goes block by block to workgroups that would have nothing.
TEST(Turns, LastPairsGoApart) {
  const Work work{.blocks = 11, .groups = 11 * 128, .planes_together = 64};  // 704 pairs
  std::int32_t most = 0;
  for (std::int32_t worker = 0; worker < 132; ++worker) {
    std::int32_t taken = 0;
    for (BlockTurns turn(work, true, worker, 132); turn.more(); turn.next()) ++taken;
    most = std::max(most, taken);
  }
  EXPECT_EQ(most, 2 * 5 + 1);
}

}  // namespace
}  // namespace rocflash::kernel
