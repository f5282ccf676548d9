// Register tiles of AMD waves and what can be done to them: products with either operand
// transposed, maxima, sums, scaling, exponentials, rounding to the operand of the next product.
// Layouts come from the architecture's `Mma`; nothing here knows about attention.
//
//   Accumulators   results of products, in the registers that the matrix instruction adds to
//   Elements       the same numbers as floats that can be changed one by one
//   operands       anything with `fragment(part, step)`: a lane's share of `Mma::rows` (or columns)
//   lines by
//                  `Mma::depth` numbers, from registers or LDS. Lines of a left operand A are its
//                  rows, those of a right operand B its columns: an operand whose lines are rows of
//                  a tile gives A, or B transposed.
#pragma once

#include "arch/arch.hpp"
#include "tile/order.hpp"
#include "tile/shared.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

template <class Mma_, int rows_, int columns_>
struct Accumulators {
  using Mma = Mma_;
  static constexpr int rows = rows_, columns = columns_;
  static constexpr int row_parts = rows / Mma::rows, column_parts = columns / Mma::columns;

  typename Mma::Result part[row_parts][column_parts];

  void scale(float factor) {
    ROCFLASH_UNROLL
    for (int r = 0; r < row_parts; ++r) {
      ROCFLASH_UNROLL
      for (int c = 0; c < column_parts; ++c) part[r][c] *= factor;
    }
  }
};

template <class Mma_, int rows_, int columns_>
struct Elements {
  using Mma = Mma_;
  using Layout = typename Mma::Layout;
  static constexpr int rows = rows_, columns = columns_;
  static constexpr int row_parts = rows / Mma::rows, column_parts = columns / Mma::columns;
  static constexpr int per_column =
      row_parts * Mma::results;  // elements of a lane in each column part

  float at[column_parts][per_column];

  // Element n of a lane is in row row(n) + lane_row() and, within a column part, in column
  // lane_column().
  static constexpr int row(int n) {
    return n / Mma::results * Mma::rows + Layout::register_row(n % Mma::results);
  }
  static int lane_row() { return Layout::lane_row(arch::lane()); }
  static int lane_column() { return Layout::lane_column(arch::lane()); }
};

// Over the lanes that hold numbers of the same column.
inline float column_maximum(float x) { return __builtin_fmaxf(x, arch::other_half(x)); }
inline float column_sum(float x) { return x + arch::other_half(x); }

// The largest element of each column of a part, in all lanes of that column.
template <class Tile>
float column_maximum(const Tile& tile, int column_part) {
  float largest = tile.at[column_part][0];
  ROCFLASH_UNROLL
  for (int n = 1; n < Tile::per_column; ++n)
    largest = __builtin_fmaxf(largest, tile.at[column_part][n]);
  return column_maximum(largest);
}

// x = exp2(x · unit − base) for all elements of a column part; returns the sum of the lane's. One by
// one: on CDNA no packed instruction runs beside a matrix instruction, and one sum keeps the compiler
// from packing (a sum that waits for itself costs nothing there).
template <class Tile>
float exp2_and_sum(Tile& tile, int column_part, float unit, float base) {
  float (&x)[Tile::per_column] = tile.at[column_part];
  constexpr int sums = arch::wave_size == 64 ? 1 : 2;
  float sum[2] = {};
  ROCFLASH_UNROLL
  for (int n = 0; n < Tile::per_column; ++n) {
    x[n] = arch::exp2(__builtin_fmaf(x[n], unit, -base));
    sum[n % sums] += x[n];
  }
  return sum[0] + sum[1];
}

enum class Side { left, right };

// A lane's line among those of one part of an operand.
template <class Mma, Side side>
int operand_line() {
  using Layout = typename Mma::Layout;
  return side == Side::left ? Layout::a_row(arch::lane(), 0) : Layout::b_column(arch::lane(), 0);
}

// How a fragment is made of the two chunks of eight numbers that a step has: chunk(own, fixed)
// loads chunk own + fixed, `own` being what depends on the lane. Half of the lanes have one each,
// or all lanes have both.
template <class Mma, class Chunk>
typename Mma::Operand fragment_of_chunks(int step, Chunk chunk) {
  if constexpr (sizeof(typename Mma::Operand) == sizeof(Words4)) {
    return chunk(arch::lane() / (arch::wave_size / 2), 2 * step);
  } else {
    const Words4 low = chunk(0, 2 * step), high = chunk(0, 2 * step + 1);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
}

// Lines are rows of a tile in LDS (RowTile), or of a tile that lies there transposed (ColumnTile):
// then they are the columns that it has in memory.
template <class Mma, class Tile, Side side>
struct SharedLines {
  const SharedWords4* tile;
  int line = operand_line<Mma, side>();
  int first_chunk = 0;  // of the lines: the depth starts there

  typename Mma::Operand fragment(int part, int step) const {
    constexpr int part_lines = side == Side::left ? Mma::rows : Mma::columns;
    return fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
      const Offset offset = Tile::offset(line, own + first_chunk, part * part_lines, fixed);
      return (tile + offset.lane)[offset.fixed];
    });
  }
};

// Lines are columns of a tile in LDS, read by instructions that transpose; its rows are the depth,
// in the order of `operand_order`.
template <class Mma, class Tile>
struct TransposedLines {
  const SharedWords4* tile;

  typename Mma::Operand fragment(int part, int step) const {
    using Layout = typename Mma::Layout;
    // Blocks of four rows by 16 columns, each read by 16 lanes.
    const int lane = arch::lane(), column = Layout::a_row(lane, 0) / 16 * 16 + 4 * (lane % 4);
    const auto read = [&](int row) {
      const Offset offset = Tile::offset(Layout::lane_row(lane) + lane % 16 / 4, column / 8, row,
                                         part * Mma::rows / 8);
      const auto* own = (const SharedWords2*)tile + 2 * offset.lane + column / 4 % 2;
      return arch::read_transposed(own + 2 * offset.fixed);
    };
    static_assert(layout::neighbouring_rows<Layout>() == 4);
    return __builtin_shufflevector(read(Mma::depth * step),
                                   read(Mma::depth * step + Layout::register_row(4)), 0, 1, 2, 3);
  }
};

// A tile of k, v, q or dO in LDS whose columns are to be lines of an operand, rows being the depth:
// as it is in memory where reads transpose, else transposed. `Operand` reads it, as a left operand.
template <bool transposing, class Mma, DType dtype, int columns, int rows>
struct ChooseTransposed {
  using Tile = ColumnTile<columns, rows * number_bytes<dtype>>;
  using Operand = SharedLines<Mma, Tile, Side::left>;
};
template <class Mma, DType dtype, int columns, int rows>
struct ChooseTransposed<true, Mma, dtype, columns, rows> {
  using Tile = RowTile<columns * number_bytes<dtype>, rows, true>;
  using Operand = TransposedLines<Mma, Tile>;
};
template <class Mma, DType dtype, int columns, int rows>
using Transposed = ChooseTransposed<arch::transposing_reads, Mma, dtype, columns, rows>;

// The lines of one part of a right operand that a wave uses again and again: in registers, or in
// LDS where registers are too few, each line then written and read by the wave itself.
template <class Mma, DType dtype, int depth, bool shared>
class KeptLines {
 public:
  using Tile = RowTile<depth * number_bytes<dtype>, Mma::columns>;
  static constexpr int shared_chunks = shared ? Tile::chunks : 0;

  KeptLines() = default;  // nothing
  // load(line, chunk) gives a chunk of a line; `room` has shared_chunks for this wave.
  template <class Load>
  KeptLines(SharedWords4* room, Load load) : room_(room), line_(operand_line<Mma, Side::right>()) {
    const int line = line_;
    if constexpr (shared) {
      constexpr int row_chunks = depth / chunk_numbers<dtype>,
                    lanes_per_line = arch::wave_size / Mma::columns;
      ROCFLASH_UNROLL
      for (int n = 0; n < row_chunks / lanes_per_line; ++n) {
        const int chunk = n * lanes_per_line + arch::lane() / Mma::columns;
        room[Tile::offset(line, chunk)] = load(line, chunk);
      }
    } else {
      ROCFLASH_UNROLL
      for (int step = 0; step < steps; ++step)
        fragment_[step] = fragment_of_chunks<Mma>(
            step, [&](int own, int fixed) { return load(line, own + fixed); });
    }
  }

  typename Mma::Operand fragment(int part, int step) const {
    if constexpr (shared) {
      return SharedLines<Mma, Tile, Side::right>{room_, line_}.fragment(part, step);
    } else {
      return fragment_[step];
    }
  }

  // From here on addresses in LDS are computed again, rather than kept in registers across a loop.
  void renew() {
    if constexpr (shared) line_ = arch::renew(line_);
  }
  // From here on what is computed from numbers in registers is computed again: without a matrix unit, bf16 is widened
  // for each product.
  void renew_numbers() {
    ROCFLASH_UNROLL
    for (auto& fragment : fragment_) arch::settle(fragment);
  }

 private:
  static constexpr int steps = depth / Mma::depth;
  SharedWords4* room_;
  int line_;
  typename Mma::Operand fragment_[shared ? 1 : steps];
};

// An operand of which each half of the wave has made a part.
template <class Mma>
typename Mma::Operand operand_of(Words4 own) {
  if constexpr (sizeof(typename Mma::Operand) == sizeof(Words4)) {
    return own;
  } else {
    return arch::both_halves(own);
  }
}

// Elements rounded to the operand of another product: rows become its depth, in the order of
// `operand_order`; lines are the columns. `Narrow` rounds two numbers into a word.
template <class Tile, class Narrow>
struct Rounded {
  using Mma = typename Tile::Mma;
  const Tile& tile;
  Narrow narrow;

  // What the lane itself has of a fragment.
  Words4 own(int part, int step) const {
    constexpr int per_step = Mma::depth / order_rows * order_results;
    const float* x = tile.at[part] + step * per_step;
    return {narrow(x[0], x[1]), narrow(x[2], x[3]), narrow(x[4], x[5]), narrow(x[6], x[7])};
  }
  typename Mma::Operand fragment(int part, int step) const {
    return operand_of<Mma>(own(part, step));
  }
};

// To the nearest, ties to even.
template <DType dtype, class Tile>
auto rounded(const Tile& tile) {
  const auto narrow = [](float low, float high) { return narrow_pair<dtype>(low, high); };
  return Rounded<Tile, decltype(narrow)>{tile, narrow};
}
// Numbers that are never negative, by the cheapest rounding to nearest.
template <DType dtype, class Tile>
auto rounded_weights(const Tile& tile) {
  const auto narrow = [](float low, float high) { return narrow_weights<dtype>(low, high); };
  return Rounded<Tile, decltype(narrow)>{tile, narrow};
}

// Fragments of a right operand that have been made before.
template <class Mma, int steps>
struct MadeFragments {
  typename Mma::Operand step_[steps];
  typename Mma::Operand fragment(int, int step) const { return step_[step]; }
};

// A · B, its `depth` in steps: one part of the rows after the other. Fragments of `together` steps at
// most are under way at a time, which bounds their registers; 0: as many as the compiler likes.
template <class Result, int depth, int together = 0, class A, class B>
Result product(const A& a, const B& b) {
  using Mma = typename Result::Mma;
  Result result;
  ROCFLASH_UNROLL
  for (int row = 0; row < Result::row_parts; ++row) {
    ROCFLASH_UNROLL
    for (int column = 0; column < Result::column_parts; ++column) {
      typename Mma::Result sum = {};
      ROCFLASH_UNROLL
      for (int step = 0; step < depth / Mma::depth; ++step) {
        sum = Mma::multiply(a.fragment(row, step), b.fragment(column, step), sum);
        if constexpr (together > 0) {
          if (step % together == together - 1) arch::in_order();
        }
      }
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r) result.at[column][row * Mma::results + r] = sum[r];
    }
  }
  return result;
}

// c += A · B, step by step of the depth: fragments of B are made once for each step.
template <int depth, class Mma, int rows, int columns, class A, class B>
void add_product(Accumulators<Mma, rows, columns>& c, const A& a, const B& b) {
  ROCFLASH_UNROLL
  for (int step = 0; step < depth / Mma::depth; ++step) {
    ROCFLASH_UNROLL
    for (int column = 0; column < c.column_parts; ++column) {
      const typename Mma::Operand right = b.fragment(column, step);
      ROCFLASH_UNROLL
      for (int row = 0; row < c.row_parts; ++row)
        c.part[row][column] = Mma::multiply(a.fragment(row, step), right, c.part[row][column]);
    }
  }
}

// How results are stored: four neighbouring rows of a column at a time, so that they must lie in
// neighbouring registers. Where the halves of the wave hold every other row, they first exchange:
// the lower half gets the first half of the part's rows, the upper half the second.
template <class Mma>
struct Quads {
  using Layout = typename Mma::Layout;
  static constexpr bool exchanged = layout::neighbouring_rows<Layout>() < 4;
  static_assert(!exchanged || (Layout::register_row(1) == 2 && Mma::results == 8));

  // After `arrange`, register n of a lane is in row row(n) + lane_row().
  static constexpr int row(int n) { return exchanged ? n : Layout::register_row(n); }
  static int lane_row() {
    return exchanged ? Mma::results * Layout::lane_row(arch::lane())
                     : Layout::lane_row(arch::lane());
  }
  static void arrange(float (&x)[Mma::results]) {
    if constexpr (exchanged) {
      const bool upper = Layout::lane_row(arch::lane()) != 0;
      float own[4], other[4];
      ROCFLASH_UNROLL
      for (int n = 0; n < 4; ++n) {
        own[n] = upper ? x[4 + n] : x[n];
        other[n] = arch::other_half(upper ? x[n] : x[4 + n]);
      }
      ROCFLASH_UNROLL
      for (int n = 0; n < 4; ++n) {
        x[2 * n] = upper ? other[n] : own[n];
        x[2 * n + 1] = upper ? own[n] : other[n];
      }
    }
  }
};

}  // namespace rocflash::kernel
