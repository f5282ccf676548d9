// ldmatrix on the host: the rows that lanes name give the operands of mma.sync as its layout wants them, whichever way
// round they lie in shared memory.
#include "tile/matrices.hpp"

#include <gtest/gtest.h>

#include "arch/layout.hpp"

namespace rocflash::kernel {
namespace {

using Layout = layout::MmaM16n8k16;

struct Number {
  int row, column;
  friend bool operator==(const Number&, const Number&) = default;
};

// Number e of the eight that a lane gets from four matrices, of a tile whose numbers are their own place.
Number loaded(MatrixRow (*own)(int), bool transposed, int lane, int e) {
  const int matrix = e / 2, half = e % 2;
  // Of a matrix a lane gets row lane / 4, columns 2 (lane % 4) and the next; of the transpose, that column.
  const int major = lane / 4, minor = 2 * (lane % 4) + half;
  const MatrixRow named = own(8 * matrix + (transposed ? minor : major));
  return {named.row, 8 * named.chunk + (transposed ? major : minor)};
}

TEST(Matrices, LeftOperands) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      const int row = Layout::a_row(lane, e), depth = Layout::a_depth(lane, e);
      EXPECT_EQ(loaded(matrices_down, false, lane, e), (Number{row, depth}));
      EXPECT_EQ(loaded(matrices_across, true, lane, e), (Number{depth, row}));
    }
  }
}

// Four numbers for one part of the columns, then four for the next.
TEST(Matrices, RightOperands) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      const int column = Layout::b_column(lane, e % 4) + e / 4 * Layout::columns,
                depth = Layout::b_depth(lane, e % 4);
      EXPECT_EQ(loaded(matrices_across, false, lane, e), (Number{column, depth}));
      EXPECT_EQ(loaded(matrices_down, true, lane, e), (Number{depth, column}));
    }
  }
}

// Numbers of four bytes. A depth taken in another order is right as long as both operands take it.
constexpr int taken(int depth) { return depth < 4 ? 2 * depth : 2 * depth - 7; }
using WordLayout = layout::MmaM16n8k8;

TEST(Matrices, RowsOfWords) {
  const auto word = [](MatrixRow (*own)(int), int lane, int matrix) {
    const MatrixRow named = own(8 * matrix + lane / 4);
    return Number{named.row, 4 * named.chunk + lane % 4};
  };
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      EXPECT_EQ(word(matrices_down, lane, e),
                (Number{WordLayout::a_row(lane, e), WordLayout::a_depth(lane, e)}));
      EXPECT_EQ(word(matrices_across, lane, e),
                (Number{WordLayout::b_column(lane, e % 2) + e / 2 * WordLayout::columns,
                        WordLayout::b_depth(lane, e % 2)}));
    }
  }
}

// The second number of a lane is in the row below the first one's, in the same column.
TEST(Matrices, ColumnsOfWordsTakeTheDepthInOrder) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 2; ++e) {
      const TileNumber down = numbers_down(lane), ordered = ordered_numbers_down(lane);
      EXPECT_EQ(down.row + e, taken(WordLayout::b_depth(lane, e)));
      EXPECT_EQ(down.column, WordLayout::b_column(lane, e));
      EXPECT_EQ(ordered.row + e, taken(WordLayout::a_depth(lane, 2 * e)));
      // Stored in that order, place n holds column taken(n).
      EXPECT_EQ(taken(ordered.column), WordLayout::a_row(lane, 2 * e));
    }
  }
  // Results of a lane, which lie side by side, are the two numbers of an operand.
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const int e = r / 2 + 2 * (r % 2);
      EXPECT_EQ(layout::result_column<WordLayout>(lane, r), taken(WordLayout::a_depth(lane, e)));
      EXPECT_EQ(layout::result_row<WordLayout>(lane, r), WordLayout::a_row(lane, e));
    }
  }
}

}  // namespace
}  // namespace rocflash::kernel
