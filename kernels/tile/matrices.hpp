// Which rows of a tile in shared memory the lanes of a warp name when ldmatrix loads operands of
// mma.sync.m16n8k16. Ordinary C++: tests/kernels/tile holds it to the layout of the instruction.
//
// One ldmatrix loads four matrices of 8x8 numbers: lane n names row n % 8 of matrix n / 8. Depth 16
// takes two matrices in one direction. A left operand's other direction has 16 rows: all four
// matrices are one fragment. A right operand's has 8 columns: the four matrices are fragments of
// two neighbouring parts.
//
//   left operand                             right operand
//   lines are rows of the tile:              lines are columns of the tile, transposed on the way:
//       0 2   depth ->                           0 2   columns ->
//       1 3                                      1 3
//   lines are columns, transposed:           lines are rows:
//       0 1   rows ->                            0 1   depth ->
//       2 3                                      2 3
#pragma once

namespace rocflash::kernel {

// A row of a tile and a chunk of eight numbers, from the fragment's first on.
struct MatrixRow {
  int row, chunk;
};
constexpr MatrixRow matrices_down(int lane) { return {lane % 16, lane / 16}; }
constexpr MatrixRow matrices_across(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2}; }

// Numbers of four bytes are loaded by the same instruction as rows of four numbers, so that operands whose
// lines are rows of the tile need nothing else. Nothing transposes them: operands whose lines are columns are
// loaded one by one. Their depth is taken in the order 0 2 4 6 1 3 5 7, in which a lane of a result has
// neighbouring columns and eight rows of a tile lie in different banks.
struct TileNumber {
  int row, column;
};
// Rows are the depth, of which this is the first number: the second one is in the next row.
constexpr TileNumber numbers_down(int lane) { return {2 * (lane % 4), lane / 4}; }
// The same of a tile whose columns are stored in that order too.
constexpr TileNumber ordered_numbers_down(int lane) {
  return {2 * (lane % 4), lane / 8 + 4 * (lane / 4 % 2)};
}

}  // namespace rocflash::kernel
