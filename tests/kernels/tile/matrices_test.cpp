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

}  // namespace
}  // namespace rocflash::kernel
