// ldmatrix emulated on the host: the row addresses of the lanes give the operands of mma.sync in
// its register layout, for K-major and MN-major tiles.
#include "tile/ldmatrix_layout.hpp"

#include <gtest/gtest.h>

#include "arch/layout.hpp"

namespace rocflash::kernel {
namespace {

using Layout = layout::MmaM16n8k16;

struct Element {
  int row, column;
  friend bool operator==(const Element&, const Element&) = default;
};

// Which element of the tile is element e of the eight that a lane gets from four matrices.
Element loaded(MatrixRow (*row_of)(int), bool transposed, int lane, int e) {
  const int matrix = e / 2, half = e % 2;
  // A lane gets columns 2 (lane % 4) and the next of row lane / 4 of the matrix, or of its
  // transpose.
  const int major = lane / 4, minor = 2 * (lane % 4) + half;
  const MatrixRow address = row_of(8 * matrix + (transposed ? minor : major));
  return {address.row, 8 * address.chunk + (transposed ? major : minor)};
}

TEST(LdmatrixLayout, OperandA) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      const int row = Layout::a_row(lane, e), depth = Layout::a_depth(lane, e);
      EXPECT_EQ(loaded(matrices_down, false, lane, e), (Element{row, depth}));
      EXPECT_EQ(loaded(matrices_across, true, lane, e), (Element{depth, row}));
    }
  }
}

// Four elements for one column block, then four for the next.
TEST(LdmatrixLayout, OperandB) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      const int column = Layout::b_column(lane, e % 4) + e / 4 * Layout::columns,
                depth = Layout::b_depth(lane, e % 4);
      EXPECT_EQ(loaded(matrices_across, false, lane, e), (Element{column, depth}));
      EXPECT_EQ(loaded(matrices_down, true, lane, e), (Element{depth, column}));
    }
  }
}

// 4-byte elements. k may be permuted as long as both operands agree.
constexpr int permuted(int depth) { return depth < 4 ? 2 * depth : 2 * depth - 7; }
using WordLayout = layout::MmaM16n8k8;

TEST(LdmatrixLayout, KMajorWords) {
  const auto word = [](MatrixRow (*row_of)(int), int lane, int matrix) {
    const MatrixRow address = row_of(8 * matrix + lane / 4);
    return Element{address.row, 4 * address.chunk + lane % 4};
  };
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      EXPECT_EQ(word(matrices_down, lane, e),
                (Element{WordLayout::a_row(lane, e), WordLayout::a_depth(lane, e)}));
      EXPECT_EQ(word(matrices_across, lane, e),
                (Element{WordLayout::b_column(lane, e % 2) + e / 2 * WordLayout::columns,
                         WordLayout::b_depth(lane, e % 2)}));
    }
  }
}

// The second element of a lane is in the next row of the same column.
TEST(LdmatrixLayout, MnMajorWordsPermuteK) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 2; ++e) {
      const TileElement down = elements_down(lane), permuted_down = permuted_elements_down(lane);
      EXPECT_EQ(down.row + e, permuted(WordLayout::b_depth(lane, e)));
      EXPECT_EQ(down.column, WordLayout::b_column(lane, e));
      EXPECT_EQ(permuted_down.row + e, permuted(WordLayout::a_depth(lane, 2 * e)));
      // In a tile stored in that permutation, position n has column permuted(n).
      EXPECT_EQ(permuted(permuted_down.column), WordLayout::a_row(lane, 2 * e));
    }
  }
  // Adjacent accumulators of a lane are the two elements of an operand.
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const int e = r / 2 + 2 * (r % 2);
      EXPECT_EQ(layout::result_column<WordLayout>(lane, r), permuted(WordLayout::a_depth(lane, e)));
      EXPECT_EQ(layout::result_row<WordLayout>(lane, r), WordLayout::a_row(lane, e));
    }
  }
}

}  // namespace
}  // namespace rocflash::kernel
