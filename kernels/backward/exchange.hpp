// Gradients of scores on their way from one wave to all others. Where queries are rows of a product and
// keys its columns, a lane's results belong to one key, which suits dv and dk. dq needs them the other
// way round, and sums over the keys of all waves: so each wave writes its share to LDS and reads all.
//
// Readers get an operand whose lines are queries; its depth is the keys of the workgroup, 16 at a time
// in the order of `operand_order`, as columns of a tile have it.
#pragma once

#include "arch/arch.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// Elements rounded once for several uses: the words of a right operand, as `Rounded` makes them.
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

// The layout by whose `operand_order` keys stand in the depth. Four neighbouring lanes write four keys side by
// side, so they must be neighbours there: gfx11's own order parts even keys from odd ones.
template <class Layout>
struct ChooseKeyOrder {
  using Type = Layout;
};
template <>
struct ChooseKeyOrder<layout::WmmaGfx11> {
  using Type = layout::WmmaGfx12;
};

// The keys that a wave writes start with this one of parts of Mma::columns. Each has one part, or several where only
// some of the waves, or pairs of them, are writers.
template <int writers, int parts>
int first_part() {
  return writers == 0 ? arch::wave() : arch::wave() % writers * parts;
}

// In LDS a row has the numbers of one query, each chunk eight keys. Lanes turn blocks of four queries by
// four keys before they write.
template <bool transposing, class Mma_, int queries, int keys, int writers, int parts>
class ChooseScoreExchange {
 public:
  using Mma = Mma_;
  using Layout = typename Mma::Layout;
  static constexpr int chunks = queries * keys / 8;
  using KeyOrder = typename ChooseKeyOrder<Layout>::Type;

  explicit ChooseScoreExchange(SharedWords4* room) : room_(room) {
    const int lane = arch::lane(), own = Layout::lane_column(lane) / 4;
    const int position = own / 4 * 4 + quad_position(own % 4);
    const int chunk = first_part<writers, parts>() * (Mma::columns / 8) + position / 2;
    const int row = Layout::lane_row(lane) + lane % 4 * Layout::register_row(1);
    to_ = 2 * offset(row, chunk, 0, 0).lane + position % 2;
  }

  // The wave's share, Mma::columns keys of all queries: one of several parts, if it has a power of two of them.
  template <class Packed>
  void write(const Packed& column, int part = 0) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < quads; ++n) write_quad(n, column.quad(n), part);
  }
  // Results 4 n to 4 n + 3 of it.
  void write_quad(int n, Words2 quad, int part = 0) const {
    const int row = n * 4 / Mma::results * Mma::rows + Layout::register_row(n * 4 % Mma::results);
    const int chunk = turn(row) ^ part * (Mma::columns / 8);
    ((SharedWords2*)room_)[(to_ ^ 2 * chunk) + 2 * row * row_chunks] = arch::transpose_quad(quad);
  }
  template <Side side = Side::left>
  typename Mma::Operand fragment(int part, int step) const {
    return fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
      const Offset from = offset(operand_line<Mma, side>(), own, part * Mma::rows, fixed);
      return (room_ + from.lane)[from.fixed];
    });
  }

 private:
  static constexpr int row_chunks = keys / 8, quads = queries / Mma::rows * Mma::results / 4;
  static_assert(row_chunks % 8 == 0 && Layout::register_row(3) == 3 * Layout::register_row(1));

  // Where among four quads of keys a quad's numbers stand in the depth.
  static int quad_position(int quad) {
    int position = 0;
    ROCFLASH_UNROLL
    for (int n = 1; n < 4; ++n)
      position = operand_order<KeyOrder>(4 * n) == 4 * quad ? n : position;
    return position;
  }
  // Readers take one chunk of eight neighbouring rows; sixteen lanes that write have two chunks of four
  // rows, neighbours or every other one. Both then find different banks. Fixed rows are multiples of eight.
  static constexpr int turn(int row) {
    return layout::neighbouring_rows<Layout>() >= 4 ? 2 * (row % 4) + row / 4 % 2
                                                    : 2 * (row / 2 % 4) + row % 2;
  }
  static Offset offset(int row, int chunk, int fixed_row, int fixed_chunk) {
    return {row * row_chunks + (chunk ^ turn(row) ^ fixed_chunk % 8),
            fixed_row * row_chunks + fixed_chunk / 8 * 8};
  }

  SharedWords4* room_;
  int to_;
};

// Where reads from LDS transpose, a row has the numbers of one key, in units of four queries.
template <class Mma_, int queries, int keys, int writers, int parts>
class ChooseScoreExchange<true, Mma_, queries, keys, writers, parts> {
 public:
  using Mma = Mma_;
  using Layout = typename Mma::Layout;
  using KeyOrder = Layout;
  static constexpr int chunks = queries * keys / 8;

  explicit ChooseScoreExchange(SharedWords4* room) : room_((SharedWords2*)room) {}

  template <class Packed>
  void write(const Packed& column, int part = 0) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < quads; ++n) write_quad(n, column.quad(n), part);
  }
  void write_quad(int n, Words2 quad, int part = 0) const {
    const int lane = arch::lane(), key = (first_part<writers, parts>() + part) * Mma::columns +
                                         Layout::lane_column(lane);
    const int row = n * 4 / Mma::results * Mma::rows + Layout::register_row(n * 4 % Mma::results);
    room_[offset(key, Layout::lane_row(lane) / 4 + row / 4)] = quad;
  }
  // Blocks of four keys by 16 queries, each read by 16 lanes.
  template <Side = Side::left>
  typename Mma::Operand fragment(int part, int step) const {
    const int lane = arch::lane(), own = Layout::lane_row(lane) + lane % 16 / 4;
    const int unit = part * Mma::rows / 4 + Layout::a_row(lane, 0) / 16 * 4 + lane % 4;
    const auto read = [&](int key) {
      return arch::read_transposed(room_ + offset(own + key, unit));
    };
    return __builtin_shufflevector(read(Mma::depth * step),
                                   read(Mma::depth * step + Layout::register_row(4)), 0, 1, 2, 3);
  }

 private:
  static constexpr int units = queries / 4, quads = queries / Mma::rows * Mma::results / 4;
  static_assert(units % 8 == 0 && layout::neighbouring_rows<Layout>() == 4);

  // Sixteen lanes that write have the same unit of neighbouring keys. Those that read have eight units of
  // four keys; where a key fills half of the banks, keys two apart must not use the same half of theirs.
  static int offset(int key, int unit) {
    static_assert(units == 8 || units == 16);
    const int turn = units == 8 ? key / 2 % 8 : key % 2 + key / 4 % 4 * 2 + key / 2 % 2 * 8;
    return key * units + (unit ^ turn);
  }

  SharedWords2* room_;
};
template <class Mma, int queries, int keys, int writers = 0, int parts = 1>
using ScoreExchange =
    ChooseScoreExchange<arch::transposing_reads, Mma, queries, keys, writers, parts>;

}  // namespace rocflash::kernel
