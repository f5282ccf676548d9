// Row addresses that the lanes of a warp pass to ldmatrix.x4 for the operands of mma.sync.m16n8k16.
// constexpr; tests/kernels/tile checks it against the instruction's register layout.
//
// One ldmatrix.x4 loads four 8x8 matrices; lane n addresses row n % 8 of matrix n / 8. K = 16 takes
// two matrices. A has M = 16: the four matrices are one fragment. B has N = 8: the four matrices
// are the fragments of two adjacent column blocks.
//
//   A                                        B
//   K-major (rows of the tile are M):        N-major (columns of the tile are N), .trans:
//       0 2   k ->                               0 2   n ->
//       1 3                                      1 3
//   M-major, .trans:                         K-major (rows of the tile are N):
//       0 1   m ->                               0 1   k ->
//       2 3                                      2 3
#pragma once

namespace rocflash::kernel {

// A row of the tile and a chunk of eight elements, relative to the fragment.
struct MatrixRow {
  int row, chunk;
};
constexpr MatrixRow matrices_down(int lane) { return {lane % 16, lane / 16}; }
constexpr MatrixRow matrices_across(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2}; }

// 4-byte elements: ldmatrix loads rows of four, which serves K-major operands. ldmatrix.trans does
// not transpose 4-byte elements, so MN-major operands are loaded one by one. Their k order is 0 2 4
// 6 1 3 5 7: a lane's accumulators are in adjacent columns then, and eight rows are in different
// banks.
struct TileElement {
  int row, column;
};
// Rows are k. This is the lane's first element; the second one is in the next row.
constexpr TileElement elements_down(int lane) { return {2 * (lane % 4), lane / 4}; }
// The same for a tile whose columns are stored in that permutation.
constexpr TileElement permuted_elements_down(int lane) {
  return {2 * (lane % 4), lane / 8 + 4 * (lane / 4 % 2)};
}

}  // namespace rocflash::kernel
