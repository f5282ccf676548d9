// LDS tiles: the swizzle is a permutation of chunks, and concurrent accesses are
// bank-conflict-free.
#include "tile/shared.hpp"

#include <gtest/gtest.h>

#include <set>

namespace rocflash::kernel {
namespace {

template <class Tile>
void expect_permutation(int rows, int row_chunks) {
  std::set<int> offsets;
  for (int row = 0; row < rows; ++row)
    for (int chunk = 0; chunk < row_chunks; ++chunk) offsets.insert(Tile::offset(row, chunk));
  EXPECT_EQ(offsets.size(), static_cast<std::size_t>(rows * row_chunks));
  EXPECT_EQ(*offsets.begin(), 0);
  EXPECT_EQ(*offsets.rbegin(), Tile::chunks - 1);
}

TEST(SharedTile, OffsetsAreAPermutation) {
  expect_permutation<RowTile<2 * 64, 64>>(64, 8);
  expect_permutation<RowTile<2 * 96, 32>>(32, 16);
  expect_permutation<RowTile<2 * 128, 64>>(64, 16);
  expect_permutation<RowTile<2 * 192, 16>>(16, 24);
  expect_permutation<RowTile<2 * 256, 32, true>>(32, 32);
  expect_permutation<ColumnTile<128, 2 * 64>>(128, 8);
  expect_permutation<ColumnTile<192, 2 * 32>>(192, 4);
  expect_permutation<ColumnTile<256, 2 * 16>>(256, 2);
}

// Splitting an offset into a lane-dependent and a compile-time term must not change it.
template <class Tile>
void expect_split_offsets_agree(int rows, int row_chunks) {
  for (int row = 0; row < rows; ++row) {
    for (int chunk = 0; chunk < row_chunks; ++chunk) {
      const Offset offset = Tile::offset(row % 16, chunk % 2, row / 16 * 16, chunk / 2 * 2);
      EXPECT_EQ(offset.lane + offset.fixed, Tile::offset(row, chunk)) << row << " " << chunk;
    }
  }
}

TEST(SharedTile, LaneAndFixedTermsAddUp) {
  expect_split_offsets_agree<RowTile<2 * 64, 64>>(64, 8);
  expect_split_offsets_agree<RowTile<2 * 192, 32>>(32, 24);
  expect_split_offsets_agree<RowTile<2 * 256, 32>>(32, 32);
  expect_split_offsets_agree<ColumnTile<128, 2 * 64>>(128, 8);
  expect_split_offsets_agree<ColumnTile<256, 2 * 32>>(256, 4);
  expect_split_offsets_agree<ColumnTile<256, 2 * 16>>(256, 2);
}

// The same chunk of eight consecutive rows is in eight different groups of banks.
template <class Tile>
void expect_no_conflict(int rows, int row_chunks) {
  for (int chunk = 0; chunk < row_chunks; ++chunk) {
    for (int row = 0; row < rows; row += 8) {
      std::set<int> banks;
      for (int n = 0; n < 8; ++n) banks.insert(Tile::offset(row + n, chunk) % 8);
      EXPECT_EQ(banks.size(), 8u) << row << " " << chunk;
    }
  }
}

TEST(SharedTile, ConsecutiveRowsAreBankConflictFree) {
  expect_no_conflict<RowTile<2 * 64, 64>>(64, 8);
  expect_no_conflict<RowTile<2 * 128, 64>>(64, 16);
  expect_no_conflict<RowTile<2 * 192, 32>>(32, 24);
  expect_no_conflict<ColumnTile<128, 2 * 64>>(128, 8);
  expect_no_conflict<ColumnTile<256, 2 * 32>>(256, 4);
}

// Sixteen lanes write one element of each of eight adjacent 4x4 blocks, of two quads of rows. In a
// ColumnTile these are halves of one chunk of every fourth column; in a RowTile, four chunks of two
// rows that are eight apart.
template <class Tile>
void expect_columns_in_different_banks(int columns, int row_chunks) {
  for (int chunk = 0; chunk < row_chunks; ++chunk) {
    for (int column = 0; column < columns; ++column) {
      if (column % 32 >= 4) continue;
      std::set<int> banks;
      for (int n = 0; n < 8; ++n) banks.insert(Tile::offset(column + 4 * n, chunk) % 8);
      EXPECT_EQ(banks.size(), 8u) << column << " " << chunk;
    }
  }
}
template <class Tile>
void expect_rows_in_different_banks(int rows, int row_chunks) {
  for (int first = 0; first < row_chunks; first += 4) {
    for (int row = 0; row < rows; ++row) {
      if (row % 16 >= 8) continue;
      std::set<int> banks;
      for (int n = 0; n < 8; ++n) banks.insert(Tile::offset(row + n / 4 * 8, first + n % 4) % 8);
      EXPECT_EQ(banks.size(), 8u) << row << " " << first;
    }
  }
}

TEST(SharedTile, BlockWritesAreBankConflictFree) {
  expect_columns_in_different_banks<ColumnTile<128, 2 * 64>>(128, 8);
  expect_columns_in_different_banks<ColumnTile<128, 2 * 32>>(128, 4);
  expect_rows_in_different_banks<RowTile<2 * 64, 64>>(64, 8);
  expect_rows_in_different_banks<RowTile<2 * 128, 32>>(32, 16);
}

}  // namespace
}  // namespace rocflash::kernel
