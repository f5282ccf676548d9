// Register layouts of the MMA instructions: which lane and register hold which element of
// D = A·B + C, with A of M x K (rows x depth), B of K x N (depth x columns), C and D of M x N.
// constexpr, so that tests/kernels/arch checks AMD's layouts against the tables of AMD's matrix
// instruction calculator, and tests/kernels/tile checks what is derived from them.
//
// Every layout has
//
//   rows, columns, depth    M, N and K of the instruction
//   lanes                   of the wave
//   results                 accumulator registers per lane
//   a_elements, b_elements  elements of A and of B per lane
//   register_row(r) + lane_row(lane)          row of accumulator r of a lane
//   register_column(r) + lane_column(lane)    its column
//   a_row(lane, e), a_depth(lane, e)          row and k of element e of a lane's A fragment
//   b_column(lane, e), b_depth(lane, e)       column and k of element e of a lane's B fragment
//
// Elements e count from the low half of the first register. A kernel may permute the k dimension,
// as long as A and B use the same permutation.
#pragma once

namespace rocflash::kernel::layout {

// CDNA, MFMA 32x32, 64 lanes. k = 4: bf16 on gfx908; k = 8: before gfx950; k = 16: gfx950.
//
//   result r, 16 per lane:   column = lane % 32         row = 8 (r / 4) + 4 (lane / 32) + r % 4
//   operand, depth 4:        row or column = lane % 32  depth = 2 (lane / 32) + e,  e < 2
//   operand, depth 8:        row or column = lane % 32  depth = 4 (lane / 32) + e,  e < 4
//   operand, depth 16:       row or column = lane % 32  depth = 8 (lane / 32) + e,  e < 8
//
//   D      columns   0    1    2   ...   31
//   rows 0-3         l0   l1   l2  ...   l31     registers 0-3
//   rows 4-7         l32  l33  l34 ...   l63     registers 0-3
//   rows 8-11        l0   l1   l2  ...   l31     registers 4-7
//   ...
template <int depth_>
struct Mfma32x32 {
  static constexpr int rows = 32, columns = 32, depth = depth_, lanes = 64;
  static constexpr int results = 16, a_elements = depth / 2, b_elements = depth / 2;

  static constexpr int register_row(int r) { return 8 * (r / 4) + r % 4; }
  static constexpr int lane_row(int lane) { return 4 * (lane / 32); }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % 32; }
  static constexpr int a_row(int lane, int) { return lane % 32; }
  static constexpr int a_depth(int lane, int e) { return a_elements * (lane / 32) + e; }
  static constexpr int b_column(int lane, int) { return lane % 32; }
  static constexpr int b_depth(int lane, int e) { return b_elements * (lane / 32) + e; }
};

// CDNA, MFMA 16x16x4 with f32 inputs, 64 lanes.
//
//   result r, 4 per lane:    column = lane % 16         row = 4 (lane / 16) + r
//   operand, 1 per lane:     row or column = lane % 16  depth = lane / 16
struct Mfma16x16x4 {
  static constexpr int rows = 16, columns = 16, depth = 4, lanes = 64;
  static constexpr int results = 4, a_elements = 1, b_elements = 1;

  static constexpr int register_row(int r) { return r; }
  static constexpr int lane_row(int lane) { return 4 * (lane / 16); }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % 16; }
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_depth(int lane, int) { return lane / 16; }
  static constexpr int b_column(int lane, int) { return lane % 16; }
  static constexpr int b_depth(int lane, int) { return lane / 16; }
};

// RDNA4, WMMA 16x16x16, 32 lanes.
//
//   result r, 8 per lane:    column = lane % 16         row = 8 (lane / 16) + r
//   operand, 8 per lane:     row or column = lane % 16  depth = 8 (e / 4) + 4 (lane / 16) + e % 4
struct WmmaGfx12 {
  static constexpr int rows = 16, columns = 16, depth = 16, lanes = 32;
  static constexpr int results = 8, a_elements = 8, b_elements = 8;

  static constexpr int register_row(int r) { return r; }
  static constexpr int lane_row(int lane) { return 8 * (lane / 16); }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % 16; }
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_depth(int lane, int e) { return 8 * (e / 4) + 4 * (lane / 16) + e % 4; }
  static constexpr int b_column(int lane, int) { return lane % 16; }
  static constexpr int b_depth(int lane, int e) { return 8 * (e / 4) + 4 * (lane / 16) + e % 4; }
};

// RDNA3, WMMA 16x16x16, 32 lanes. Both halves of the wave hold the same operands.
//
//   result r, 8 per lane:    column = lane % 16         row = 2 r + lane / 16
//   operand, 16 per lane:    row or column = lane % 16  depth = e
struct WmmaGfx11 {
  static constexpr int rows = 16, columns = 16, depth = 16, lanes = 32;
  static constexpr int results = 8, a_elements = 16, b_elements = 16;

  static constexpr int register_row(int r) { return 2 * r; }
  static constexpr int lane_row(int lane) { return lane / 16; }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % 16; }
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_depth(int, int e) { return e; }
  static constexpr int b_column(int lane, int) { return lane % 16; }
  static constexpr int b_depth(int, int e) { return e; }
};

// Emulated MMA: dot products that read A from another lane. Each half of the wave computes all
// columns of eight rows.
//
//   result r, 8 per lane:    column = lane % columns               row = 8 (lane / columns) + r
//   operand A, 16 per lane:  row = 8 (lane / columns) + lane % 8   depth = e
//   operand B, 16 per lane:  column = lane % columns               depth = e
template <int columns_>
struct Dot {
  static constexpr int rows = 16, columns = columns_, depth = 16, lanes = 2 * columns;
  static constexpr int results = 8, a_elements = 16, b_elements = 16;

  static constexpr int register_row(int r) { return r; }
  static constexpr int lane_row(int lane) { return 8 * (lane / columns); }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % columns; }
  static constexpr int a_row(int lane, int) { return lane_row(lane) + lane % 8; }
  static constexpr int a_depth(int, int e) { return e; }
  static constexpr int b_column(int lane, int) { return lane_column(lane); }
  static constexpr int b_depth(int, int e) { return e; }
};
// RDNA2, 32 lanes, DPP row_share within a row of 16 lanes: lanes r and r + 8 of each half hold row
// r of A for that half.
using DotGfx10 = Dot<16>;
// GCN5, 64 lanes, DPP within a quad or from the adjacent quad.
using DotGfx9 = Dot<32>;

// NVIDIA's mma.sync.m16n8k16, 32 lanes.
//
//   result r, 4 per lane   row = lane / 4 + 8 (r / 2)      column = 2 (lane % 4) + r % 2
//   operand A, 8 per lane  row = lane / 4 + 8 (e / 2 % 2)  depth = 2 (lane % 4) + 8 (e / 4) + e % 2
//   operand B, 4 per lane  column = lane / 4               depth = 2 (lane % 4) + 8 (e / 2) + e % 2
//
//   D      columns 0 1   2 3   4 5   6 7
//   row 0          l0    l1    l2    l3      registers 0 and 1
//   row 1          l4    l5    l6    l7
//   ...
//   row 8          l0    l1    l2    l3      registers 2 and 3
//
// Two accumulators of adjacent columns, converted to 16 bits, are an A fragment: elements 0 to 3
// are the four registers of the left one.
struct MmaM16n8k16 {
  static constexpr int rows = 16, columns = 8, depth = 16, lanes = 32;
  static constexpr int results = 4, a_elements = 8, b_elements = 4;

  static constexpr int register_row(int r) { return 8 * (r / 2); }
  static constexpr int lane_row(int lane) { return lane / 4; }
  static constexpr int register_column(int r) { return r % 2; }
  static constexpr int lane_column(int lane) { return 2 * (lane % 4); }
  static constexpr int a_row(int lane, int e) { return lane / 4 + 8 * (e / 2 % 2); }
  static constexpr int a_depth(int lane, int e) { return 2 * (lane % 4) + 8 * (e / 4) + e % 2; }
  static constexpr int b_column(int lane, int) { return lane / 4; }
  static constexpr int b_depth(int lane, int e) { return 2 * (lane % 4) + 8 * (e / 2) + e % 2; }
};

// NVIDIA's mma.sync.m16n8k8 with TF32 inputs of four bytes; accumulators as above.
//
//   operand A, 4 per lane    row = lane / 4 + 8 (e % 2)      depth = lane % 4 + 4 (e / 2)
//   operand B, 2 per lane    column = lane / 4               depth = lane % 4 + 4 e
struct MmaM16n8k8 {
  static constexpr int rows = 16, columns = 8, depth = 8, lanes = 32;
  static constexpr int results = 4, a_elements = 4, b_elements = 2;

  static constexpr int register_row(int r) { return 8 * (r / 2); }
  static constexpr int lane_row(int lane) { return lane / 4; }
  static constexpr int register_column(int r) { return r % 2; }
  static constexpr int lane_column(int lane) { return 2 * (lane % 4); }
  static constexpr int a_row(int lane, int e) { return lane / 4 + 8 * (e % 2); }
  static constexpr int a_depth(int lane, int e) { return lane % 4 + 4 * (e / 2); }
  static constexpr int b_column(int lane, int) { return lane / 4; }
  static constexpr int b_depth(int lane, int e) { return lane % 4 + 4 * e; }
};

template <class Layout>
constexpr int result_row(int lane, int r) {
  return Layout::register_row(r) + Layout::lane_row(lane);
}
template <class Layout>
constexpr int result_column(int lane, int r) {
  return Layout::register_column(r) + Layout::lane_column(lane);
}

// The largest power of two n such that any n consecutive accumulators, from a multiple of n on, are
// in consecutive rows of one column.
template <class Layout>
constexpr int contiguous_rows() {
  int run = 1;
  while (2 * run <= Layout::results) {
    for (int r = 0; r < Layout::results; ++r) {
      const int first = r / (2 * run) * (2 * run);
      if (Layout::register_row(r) != Layout::register_row(first) + r - first ||
          Layout::register_column(r) != Layout::register_column(first))
        return run;
    }
    run *= 2;
  }
  return run;
}

// The largest power of two n such that any n consecutive accumulators, from a multiple of n on, are
// in one aligned block of `block` rows, in every lane.
template <class Layout>
constexpr int results_within(int block) {
  int run = 1;
  while (2 * run <= Layout::results) {
    for (int lane = 0; lane < Layout::lanes; ++lane) {
      for (int r = 0; r < Layout::results; ++r) {
        if (result_row<Layout>(lane, r) / block !=
            result_row<Layout>(lane, r / (2 * run) * (2 * run)) / block)
          return run;
      }
    }
    run *= 2;
  }
  return run;
}

}  // namespace rocflash::kernel::layout
