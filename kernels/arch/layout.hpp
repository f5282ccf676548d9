// How matrix instructions spread their numbers over lanes and registers. D = A·B + C, where A has
// rows x depth numbers, B depth x columns, and C and D rows x columns. Ordinary C++:
// tests/kernels/arch holds AMD's layouts to the tables of AMD's matrix calculator,
// tests/kernels/tile what is derived from them.
//
// Every layout has
//
//   rows, columns, depth    the shape of the product
//   lanes                   of the wave that computes it
//   results                 registers of C and D per lane
//   a_numbers, b_numbers    numbers of A and of B per lane
//   register_row(r) + lane_row(lane)          the row of result r of a lane
//   register_column(r) + lane_column(lane)    its column
//   a_row(lane, e), a_depth(lane, e)          where number e of a lane's part of A stands in A
//   b_column(lane, e), b_depth(lane, e)       where number e of a lane's part of B stands in B
//
// Numbers e count from the low half of the first register on. Depth only has to agree between A and
// B: a kernel may put any permutation of it there, as long as both operands use the same.
#pragma once

namespace rocflash::kernel::layout {

// CDNA, 32x32 results in 64 lanes. depth 4: bf16 on gfx908; depth 8: before gfx950; depth 16: gfx950.
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
  static constexpr int results = 16, a_numbers = depth / 2, b_numbers = depth / 2;

  static constexpr int register_row(int r) { return 8 * (r / 4) + r % 4; }
  static constexpr int lane_row(int lane) { return 4 * (lane / 32); }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % 32; }
  static constexpr int a_row(int lane, int) { return lane % 32; }
  static constexpr int a_depth(int lane, int e) { return a_numbers * (lane / 32) + e; }
  static constexpr int b_column(int lane, int) { return lane % 32; }
  static constexpr int b_depth(int lane, int e) { return b_numbers * (lane / 32) + e; }
};

// CDNA, f32 as it is: 16x16 results in 64 lanes, four deep.
//
//   result r, 4 per lane:    column = lane % 16         row = 4 (lane / 16) + r
//   operand, 1 per lane:     row or column = lane % 16  depth = lane / 16
struct Mfma16x16x4 {
  static constexpr int rows = 16, columns = 16, depth = 4, lanes = 64;
  static constexpr int results = 4, a_numbers = 1, b_numbers = 1;

  static constexpr int register_row(int r) { return r; }
  static constexpr int lane_row(int lane) { return 4 * (lane / 16); }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % 16; }
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_depth(int lane, int) { return lane / 16; }
  static constexpr int b_column(int lane, int) { return lane % 16; }
  static constexpr int b_depth(int lane, int) { return lane / 16; }
};

// RDNA4, 16x16 results in 32 lanes.
//
//   result r, 8 per lane:    column = lane % 16         row = 8 (lane / 16) + r
//   operand, 8 per lane:     row or column = lane % 16  depth = 8 (e / 4) + 4 (lane / 16) + e % 4
struct WmmaGfx12 {
  static constexpr int rows = 16, columns = 16, depth = 16, lanes = 32;
  static constexpr int results = 8, a_numbers = 8, b_numbers = 8;

  static constexpr int register_row(int r) { return r; }
  static constexpr int lane_row(int lane) { return 8 * (lane / 16); }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % 16; }
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_depth(int lane, int e) { return 8 * (e / 4) + 4 * (lane / 16) + e % 4; }
  static constexpr int b_column(int lane, int) { return lane % 16; }
  static constexpr int b_depth(int lane, int e) { return 8 * (e / 4) + 4 * (lane / 16) + e % 4; }
};

// RDNA3, 16x16 results in 32 lanes; both halves of the wave hold the same operands.
//
//   result r, 8 per lane:    column = lane % 16         row = 2 r + lane / 16
//   operand, 16 per lane:    row or column = lane % 16  depth = e
struct WmmaGfx11 {
  static constexpr int rows = 16, columns = 16, depth = 16, lanes = 32;
  static constexpr int results = 8, a_numbers = 16, b_numbers = 16;

  static constexpr int register_row(int r) { return 2 * r; }
  static constexpr int lane_row(int lane) { return lane / 16; }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % 16; }
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_depth(int, int e) { return e; }
  static constexpr int b_column(int lane, int) { return lane % 16; }
  static constexpr int b_depth(int, int e) { return e; }
};

// Dot products that read A from another lane: each half of the wave has all columns of eight rows.
//
//   result r, 8 per lane:    column = lane % columns               row = 8 (lane / columns) + r
//   operand A, 16 per lane:  row = 8 (lane / columns) + lane % 8   depth = e
//   operand B, 16 per lane:  column = lane % columns               depth = e
template <int columns_>
struct Dot {
  static constexpr int rows = 16, columns = columns_, depth = 16, lanes = 2 * columns;
  static constexpr int results = 8, a_numbers = 16, b_numbers = 16;

  static constexpr int register_row(int r) { return r; }
  static constexpr int lane_row(int lane) { return 8 * (lane / columns); }
  static constexpr int register_column(int) { return 0; }
  static constexpr int lane_column(int lane) { return lane % columns; }
  static constexpr int a_row(int lane, int) { return lane_row(lane) + lane % 8; }
  static constexpr int a_depth(int, int e) { return e; }
  static constexpr int b_column(int lane, int) { return lane_column(lane); }
  static constexpr int b_depth(int, int e) { return e; }
};
// RDNA2, 32 lanes, from another lane of the same row of 16: lanes r and r + 8 of each half have what result r of
// that half needs.
using DotGfx10 = Dot<16>;
// GCN5, 64 lanes, from another lane of the same quad or of the one beside it.
using DotGfx9 = Dot<32>;

// NVIDIA's mma.sync.m16n8k16, 16x8 results in 32 lanes.
//
//   result r, 4 per lane     row = lane / 4 + 8 (r / 2)      column = 2 (lane % 4) + r % 2
//   operand A, 8 per lane    row = lane / 4 + 8 (e / 2 % 2)  depth = 2 (lane % 4) + 8 (e / 4) + e % 2
//   operand B, 4 per lane    column = lane / 4               depth = 2 (lane % 4) + 8 (e / 2) + e % 2
//
//   D      columns 0 1   2 3   4 5   6 7
//   row 0          l0    l1    l2    l3      registers 0 and 1
//   row 1          l4    l5    l6    l7
//   ...
//   row 8          l0    l1    l2    l3      registers 2 and 3
//
// Two results side by side are, rounded, an operand A: numbers 0 to 3 are the left one's four
// registers.
struct MmaM16n8k16 {
  static constexpr int rows = 16, columns = 8, depth = 16, lanes = 32;
  static constexpr int results = 4, a_numbers = 8, b_numbers = 4;

  static constexpr int register_row(int r) { return 8 * (r / 2); }
  static constexpr int lane_row(int lane) { return lane / 4; }
  static constexpr int register_column(int r) { return r % 2; }
  static constexpr int lane_column(int lane) { return 2 * (lane % 4); }
  static constexpr int a_row(int lane, int e) { return lane / 4 + 8 * (e / 2 % 2); }
  static constexpr int a_depth(int lane, int e) { return 2 * (lane % 4) + 8 * (e / 4) + e % 2; }
  static constexpr int b_column(int lane, int) { return lane / 4; }
  static constexpr int b_depth(int lane, int e) { return 2 * (lane % 4) + 8 * (e / 2) + e % 2; }
};

// NVIDIA's mma.sync.m16n8k8 of TF32 numbers, which take four bytes each: results as above.
//
//   operand A, 4 per lane    row = lane / 4 + 8 (e % 2)      depth = lane % 4 + 4 (e / 2)
//   operand B, 2 per lane    column = lane / 4               depth = lane % 4 + 4 e
struct MmaM16n8k8 {
  static constexpr int rows = 16, columns = 8, depth = 8, lanes = 32;
  static constexpr int results = 4, a_numbers = 4, b_numbers = 2;

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

// The largest power of two such that so many results, one after the other from any multiple of it
// on, lie in neighbouring rows of one column.
template <class Layout>
constexpr int neighbouring_rows() {
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

// The largest power of two such that so many results, one after the other from any multiple of it
// on, lie in one aligned group of `group` rows, in every lane.
template <class Layout>
constexpr int results_within(int group) {
  int run = 1;
  while (2 * run <= Layout::results) {
    for (int lane = 0; lane < Layout::lanes; ++lane) {
      for (int r = 0; r < Layout::results; ++r) {
        if (result_row<Layout>(lane, r) / group !=
            result_row<Layout>(lane, r / (2 * run) * (2 * run)) / group)
          return run;
      }
    }
    run *= 2;
  }
  return run;
}

}  // namespace rocflash::kernel::layout
