// Tiles in LDS: every chunk has a place of its own, and lanes that read together find theirs in
// different banks.
#include "tile/shared.hpp"

#include <gtest/gtest.h>

#include <set>

namespace rocflash::kernel {
namespace {

template <class Tile>
void expect_all_places_taken_once(int rows, int row_chunks) {
  std::set<int> places;
  for (int row = 0; row < rows; ++row)
    for (int chunk = 0; chunk < row_chunks; ++chunk) places.insert(Tile::offset(row, chunk));
  EXPECT_EQ(places.size(), static_cast<std::size_t>(rows * row_chunks));
  EXPECT_EQ(*places.begin(), 0);
  EXPECT_EQ(*places.rbegin(), Tile::chunks - 1);
}

TEST(SharedTile, PlacesAreAPermutation) {
  expect_all_places_taken_once<RowTile<2 * 64, 64>>(64, 8);
  expect_all_places_taken_once<RowTile<2 * 96, 32>>(32, 16);
  expect_all_places_taken_once<RowTile<2 * 128, 64>>(64, 16);
  expect_all_places_taken_once<RowTile<2 * 192, 16>>(16, 24);
  expect_all_places_taken_once<RowTile<2 * 256, 32, true>>(32, 32);
  expect_all_places_taken_once<ColumnTile<128, 2 * 64>>(128, 8);
  expect_all_places_taken_once<ColumnTile<192, 2 * 32>>(192, 4);
  expect_all_places_taken_once<ColumnTile<256, 2 * 16>>(256, 2);
}

// What the compiler folds into an offset must not change where a chunk is.
template <class Tile>
void expect_split_agrees(int rows, int row_chunks) {
  for (int row = 0; row < rows; ++row) {
    for (int chunk = 0; chunk < row_chunks; ++chunk) {
      const Offset offset = Tile::offset(row % 16, chunk % 2, row / 16 * 16, chunk / 2 * 2);
      EXPECT_EQ(offset.lane + offset.fixed, Tile::offset(row, chunk)) << row << " " << chunk;
    }
  }
}

TEST(SharedTile, LaneAndFixedPartsAddUp) {
  expect_split_agrees<RowTile<2 * 64, 64>>(64, 8);
  expect_split_agrees<RowTile<2 * 192, 32>>(32, 24);
  expect_split_agrees<RowTile<2 * 256, 32>>(32, 32);
  expect_split_agrees<ColumnTile<128, 2 * 64>>(128, 8);
  expect_split_agrees<ColumnTile<256, 2 * 32>>(256, 4);
  expect_split_agrees<ColumnTile<256, 2 * 16>>(256, 2);
}

// Eight rows in a row, the same chunk of each: eight different banks' worth of 16 bytes.
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

TEST(SharedTile, NeighboursDoNotShareBanks) {
  expect_no_conflict<RowTile<2 * 64, 64>>(64, 8);
  expect_no_conflict<RowTile<2 * 128, 64>>(64, 16);
  expect_no_conflict<RowTile<2 * 192, 32>>(32, 24);
  expect_no_conflict<ColumnTile<128, 2 * 64>>(128, 8);
  expect_no_conflict<ColumnTile<256, 2 * 32>>(256, 4);
}

// Sixteen lanes write a number of each of eight neighbouring 4x4 blocks, of two quads of rows: as columns,
// halves of one chunk of every fourth column; as rows, four chunks of two rows that are eight apart.
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

TEST(SharedTile, WritersOfBlocksDoNotShareBanks) {
  expect_columns_in_different_banks<ColumnTile<128, 2 * 64>>(128, 8);
  expect_columns_in_different_banks<ColumnTile<128, 2 * 32>>(128, 4);
  expect_rows_in_different_banks<RowTile<2 * 64, 64>>(64, 8);
  expect_rows_in_different_banks<RowTile<2 * 128, 32>>(32, 16);
}

}  // namespace
}  // namespace rocflash::kernel
