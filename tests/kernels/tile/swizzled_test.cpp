// Swizzled shared memory tiles: the swizzle is a permutation of chunks, eight rows of a chunk
// column are bank-conflict-free, and the threads of a CTA copy each chunk once.
#include "tile/swizzled.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace rocflash::kernel {
namespace {

template <int bucket>
void expect_swizzle() {
  using Tile = SharedRows<2 * bucket>;
  std::set<int> offsets;
  for (int row = 0; row < 64; ++row) {
    for (int chunk = 0; chunk < Tile::chunks; ++chunk) {
      const int offset = Tile::offset(row, chunk);
      EXPECT_EQ(offset % 16, 0);
      EXPECT_EQ(offset / Tile::bytes, row);
      offsets.insert(offset);
      // A lane computes the address of chunk 0 or 1 once and steps from it.
      const auto first = static_cast<SharedAddress>(4096 + Tile::offset(row, chunk % 2));
      EXPECT_EQ(Tile::along(first, chunk / 2 * 2), static_cast<SharedAddress>(4096 + offset));
    }
  }
  EXPECT_EQ(offsets.size(), 64u * Tile::chunks);
  for (int row = 0; row < 64; row += 8) {
    for (int chunk = 0; chunk < Tile::chunks; ++chunk) {
      std::set<int> banks;
      for (int n = 0; n < 8; ++n) banks.insert(Tile::offset(row + n, chunk) % 128 / 16);
      EXPECT_EQ(banks.size(), 8u) << bucket << " " << row << " " << chunk;
    }
  }
}

TEST(Swizzled, IsAPermutationWithoutBankConflicts) {
  expect_swizzle<64>();
  expect_swizzle<96>();
  expect_swizzle<128>();
  expect_swizzle<192>();
  expect_swizzle<256>();
}

template <int bucket, int count, int threads>
void expect_copied_once() {
  using Task = CopyTask<2 * bucket, count, threads>;
  std::map<SharedAddress, int> copied;
  for (int thread = 0; thread < threads; ++thread) {
    const Task task(thread);
    if (task.idle()) continue;
    for (int n = 0; n < Task::rounds; ++n) {
      const SharedAddress at = Task::next(task.first(8192), n);
      EXPECT_EQ(at, static_cast<SharedAddress>(
                        8192 + Task::Tile::offset(task.row + n * Task::step, task.chunk)));
      ++copied[at];
    }
  }
  EXPECT_EQ(copied.size(), static_cast<std::size_t>(count * Task::Tile::chunks));
  for (const auto& [at, times] : copied) EXPECT_EQ(times, 1) << at;
}

TEST(Swizzled, ThreadsCopyEachChunkOnce) {
  expect_copied_once<64, 128, 128>();
  expect_copied_once<64, 64, 128>();
  expect_copied_once<96, 64, 128>();
  expect_copied_once<128, 64, 128>();
  expect_copied_once<192, 64, 128>();
  expect_copied_once<256, 128, 256>();
  expect_copied_once<256, 32, 256>();
}

}  // namespace
}  // namespace rocflash::kernel
