// dS exchange between the waves of a workgroup through LDS. The results of a lane belong to one
// key, as dV and dK need them. dQ needs queries as rows, and sums over the keys of all waves: each
// wave writes its keys' dS and reads that of all keys.
//
// Readers get an A operand with queries as lines. Its depth is the keys of the workgroup, 16 at a
// time in `operand_order`, the order of a transposed tile's columns.
#pragma once

#include "arch/arch.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// Elements rounded once for several uses: the words of a B operand.
template <class Mma_, int rows>
struct PackedColumn {
  using Mma = Mma_;
  static constexpr int steps = rows / order_rows;
  Words4 step[steps] = {};

  PackedColumn() = default;

  template <class Operand>
  explicit PackedColumn(const Operand& operand) {
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n) step[n] = operand.own(0, n);
  }
  typename Mma::Operand fragment(int, int n) const { return operand_of<Mma>(step[n]); }
  // Results 4 n to 4 n + 3.
  Words2 quad(int n) const { return n % 2 == 0 ? step[n / 2].xy : step[n / 2].zw; }
};

// The layout whose `operand_order` the keys of the depth follow. Four adjacent lanes write four
// adjacent keys, so these must be adjacent in the depth. gfx11's own order separates even keys from
// odd ones.
template <class Layout>
struct SelectKeyOrder {
  using Type = Layout;
};
template <>
struct SelectKeyOrder<layout::WmmaGfx11> {
  using Type = layout::WmmaGfx12;
};

// Index of the first block of Mma::columns keys that a wave writes. A wave writes `parts` blocks;
// `writers` waves write.
template <int writers, int parts>
int first_part() {
  return writers == 0 ? arch::wave() : arch::wave() % writers * parts;
}

// LDS rows are queries; a 16-byte chunk has eight keys. Lanes transpose 4x4 blocks before they
// write.
template <bool transposing, class Mma_, int queries, int keys, int writers, int parts>
class SelectScoreExchange {
 public:
  using Mma = Mma_;
  using Layout = typename Mma::Layout;
  static constexpr int chunks = queries * keys / 8;
  using KeyOrder = typename SelectKeyOrder<Layout>::Type;

  explicit SelectScoreExchange(SharedWords4* lds) : lds_(lds) {
    const int lane = arch::lane(), own = Layout::lane_column(lane) / 4;
    const int position = own / 4 * 4 + quad_position(own % 4);
    const int chunk = first_part<writers, parts>() * (Mma::columns / 8) + position / 2;
    const int row = Layout::lane_row(lane) + lane % 4 * Layout::register_row(1);
    to_ = 2 * offset(row, chunk, 0, 0).lane + position % 2;
  }

  // Writes block `part` of the wave's keys: Mma::columns keys of all queries.
  template <class Packed>
  void write(const Packed& column, int part = 0) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < quads; ++n) write_quad(n, column.quad(n), part);
  }
  // Writes results 4 n to 4 n + 3.
  void write_quad(int n, Words2 quad, int part = 0) const {
    const int row = n * 4 / Mma::results * Mma::rows + Layout::register_row(n * 4 % Mma::results);
    const int chunk = xor_mask(row) ^ part * (Mma::columns / 8);
    ((SharedWords2*)lds_)[(to_ ^ 2 * chunk) + 2 * row * row_chunks] = arch::transpose_quad(quad);
  }
  template <Side side = Side::left>
  typename Mma::Operand fragment(int part, int step) const {
    return fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
      const Offset from = offset(operand_line<Mma, side>(), own, part * Mma::rows, fixed);
      return (lds_ + from.lane)[from.fixed];
    });
  }

 private:
  static constexpr int row_chunks = keys / 8, quads = queries / Mma::rows * Mma::results / 4;
  static_assert(row_chunks % 8 == 0 && Layout::register_row(3) == 3 * Layout::register_row(1));

  // Position of a quad of keys among four quads in the depth.
  static int quad_position(int quad) {
    int position = 0;
    ROCFLASH_UNROLL
    for (int n = 1; n < 4; ++n)
      position = operand_order<KeyOrder>(4 * n) == 4 * quad ? n : position;
    return position;
  }
  // Swizzle. Readers read one chunk of eight adjacent rows; sixteen writing lanes have two chunks
  // of four rows, adjacent or every other one. Neither has bank conflicts. Fixed rows are multiples
  // of eight.
  static constexpr int xor_mask(int row) {
    return layout::contiguous_rows<Layout>() >= 4 ? 2 * (row % 4) + row / 4 % 2
                                                  : 2 * (row / 2 % 4) + row % 2;
  }
  static Offset offset(int row, int chunk, int fixed_row, int fixed_chunk) {
    return {row * row_chunks + (chunk ^ xor_mask(row) ^ fixed_chunk % 8),
            fixed_row * row_chunks + fixed_chunk / 8 * 8};
  }

  SharedWords4* lds_;
  int to_;
};

// With transposing LDS reads (ds_read_tr) a row is one key, in units of four queries.
template <class Mma_, int queries, int keys, int writers, int parts>
class SelectScoreExchange<true, Mma_, queries, keys, writers, parts> {
 public:
  using Mma = Mma_;
  using Layout = typename Mma::Layout;
  using KeyOrder = Layout;
  static constexpr int chunks = queries * keys / 8;

  explicit SelectScoreExchange(SharedWords4* lds) : lds_((SharedWords2*)lds) {}

  template <class Packed>
  void write(const Packed& column, int part = 0) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < quads; ++n) write_quad(n, column.quad(n), part);
  }
  void write_quad(int n, Words2 quad, int part = 0) const {
    const int lane = arch::lane(), key = (first_part<writers, parts>() + part) * Mma::columns +
                                         Layout::lane_column(lane);
    const int row = n * 4 / Mma::results * Mma::rows + Layout::register_row(n * 4 % Mma::results);
    lds_[offset(key, Layout::lane_row(lane) / 4 + row / 4)] = quad;
  }
  // Sixteen lanes read a block of four keys by 16 queries.
  template <Side = Side::left>
  typename Mma::Operand fragment(int part, int step) const {
    const int lane = arch::lane(), own = Layout::lane_row(lane) + lane % 16 / 4;
    const int unit = part * Mma::rows / 4 + Layout::a_row(lane, 0) / 16 * 4 + lane % 4;
    const auto read = [&](int key) { return arch::ds_read_tr16(lds_ + offset(own + key, unit)); };
    return __builtin_shufflevector(read(Mma::depth * step),
                                   read(Mma::depth * step + Layout::register_row(4)), 0, 1, 2, 3);
  }

 private:
  static constexpr int units = queries / 4, quads = queries / Mma::rows * Mma::results / 4;
  static_assert(units % 8 == 0 && layout::contiguous_rows<Layout>() == 4);

  // Swizzle. Sixteen writing lanes have the same unit of adjacent keys; readers have eight units of
  // four keys. Where a key fills half of the banks, keys two apart must use different halves.
  static int offset(int key, int unit) {
    static_assert(units == 8 || units == 16);
    const int xor_mask = units == 8 ? key / 2 % 8 : key % 2 + key / 4 % 4 * 2 + key / 2 % 2 * 8;
    return key * units + (unit ^ xor_mask);
  }

  SharedWords2* lds_;
};
template <class Mma, int queries, int keys, int writers = 0, int parts = 1>
using ScoreExchange = SelectScoreExchange<arch::has_ds_read_tr, Mma, queries, keys, writers, parts>;

}  // namespace rocflash::kernel
