// TMA boxes of a paged KV cache: each row is where find_page locates it, and never outside the
// pages.
#include "attention/paged_tma.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace rocflash::kernel {
namespace {

constexpr std::int32_t caches = 9, page_rows = 48, pages = 6;
// Page numbers out of range are clamped.
constexpr std::int32_t table[2][pages] = {{4, 0, 8, 3, 3, 1},
                                          {-1, 9, std::numeric_limits<std::int32_t>::min(),
                                           std::numeric_limits<std::int32_t>::max(), 5, 2}};

Rows paged_keys() {
  Rows keys;
  keys.blocks = &table[0][0];
  keys.blocks_stride = pages;
  keys.block_rows = page_rows;
  return keys;
}

TEST(PagedTmaBox, RowsAreThoseThatFindPageLocates) {
  const Rows keys = paged_keys();
  for (const std::int32_t count : {8, 16, 24, 48})
    for (std::int32_t sequence = 0; sequence < 2; ++sequence)
      for (std::int32_t begin = 0; begin < pages * page_rows; begin += count) {
        const PagedTmaBox box(keys, caches, sequence, begin, count, 0);
        for (std::int32_t n = 0; n < count; ++n) {
          std::int64_t batch = sequence, row = begin + n;
          find_page(keys, caches, batch, row);
          EXPECT_EQ(box.page, batch);
          EXPECT_EQ(box.row + n, row);
        }
        EXPECT_TRUE(box.page >= 0 && box.page < caches);
      }
}

// The block table is not read for them: it may be shorter.
TEST(PagedTmaBox, UnneededBoxesAreOutOfBounds) {
  Rows keys = paged_keys();
  for (const std::int32_t begin : {-64, -16, 0, 80}) {
    keys.blocks = nullptr;
    keys.block_rows = 0;
    const PagedTmaBox box(keys, caches, 1, begin, 16, begin < 0 ? 0 : 96);
    EXPECT_EQ(box.row, -16);
    EXPECT_EQ(box.page, 0);
  }
}

// With one page per sequence, boxes start at any row.
TEST(PagedTmaBox, NegativeRowsAreOutOfBounds) {
  Rows keys = paged_keys();
  keys.blocks_stride = 1;
  keys.block_rows = 1000;
  const PagedTmaBox below(keys, caches, 0, -5, 128, 0), above(keys, caches, 0, 123, 128, 130);
  EXPECT_EQ(below.page, 4);
  EXPECT_EQ(below.row, -5);
  EXPECT_EQ(above.page, 4);
  EXPECT_EQ(above.row, 123);
}

}  // namespace
}  // namespace rocflash::kernel
