// Register tiles of AMD waves: GEMM with either operand transposed, row max, row sum, scaling, exp,
// conversion to the operand of the next GEMM. Layouts come from the architecture's `Mma`. Nothing
// here is specific to attention.
//
//   Accumulators   MMA accumulators; a tile is an array of blocks of Mma::rows x Mma::columns
//   Elements       the same values as individual floats
//   operands       anything with `fragment(part, step)`: a lane's fragment of block `part` (M for
//                  A, N for B) and k-step `step`, from registers or LDS. A line is a row of A or a
//                  column of B: a K-major operand has its lines in the rows of a tile.
#pragma once

#include "arch/arch.hpp"
#include "tile/operand_order.hpp"
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
      row_parts * Mma::results;  // elements of a lane per column block

  float at[column_parts][per_column];

  // Element n of a lane is in row row(n) + lane_row() and in column lane_column() of its block.
  static constexpr int row(int n) {
    return n / Mma::results * Mma::rows + Layout::register_row(n % Mma::results);
  }
  static int lane_row() { return Layout::lane_row(arch::lane()); }
  static int lane_column() { return Layout::lane_column(arch::lane()); }
};

// Reductions over the lanes that hold elements of the same column.
inline float column_maximum(float x) { return __builtin_fmaxf(x, arch::other_half(x)); }
inline float column_sum(float x) { return x + arch::other_half(x); }

// Maximum of each column of a block, in all lanes of that column.
template <class Tile>
float column_maximum(const Tile& tile, int column_part) {
  float largest = tile.at[column_part][0];
  ROCFLASH_UNROLL
  for (int n = 1; n < Tile::per_column; ++n)
    largest = __builtin_fmaxf(largest, tile.at[column_part][n]);
  return column_maximum(largest);
}

// x = exp(x · scale − base) for all elements of a column block; returns the sum of the lane's
// elements. Scalar, not packed: on CDNA packed VALU instructions do not co-issue with MFMA. A
// single accumulator keeps the compiler from packing, and its dependency chain costs nothing there.
template <class Domain, class Tile>
float exp_and_sum(Tile& tile, int column_part, float scale, float base) {
  float (&x)[Tile::per_column] = tile.at[column_part];
  constexpr int sums = arch::wave_size == 64 ? 1 : 2;
  float sum[2] = {};
  ROCFLASH_UNROLL
  for (int n = 0; n < Tile::per_column; ++n) {
    x[n] = Domain::exp(__builtin_fmaf(x[n], scale, -base));
    sum[n % sums] += x[n];
  }
  return sum[0] + sum[1];
}

enum class Side { left, right };

// A lane's line within one block of an operand.
template <class Mma, Side side>
int operand_line() {
  using Layout = typename Mma::Layout;
  return side == Side::left ? Layout::a_row(arch::lane(), 0) : Layout::b_column(arch::lane(), 0);
}

// Assembles a fragment from the two chunks of eight elements of a k-step: chunk(own, fixed) loads
// chunk own + fixed, where `own` depends on the lane. Each half of the wave holds one chunk, or all
// lanes hold both (RDNA3 and emulated MMA).
template <class Mma, class Chunk>
typename Mma::Operand fragment_of_chunks(int step, Chunk chunk) {
  if constexpr (sizeof(typename Mma::Operand) == sizeof(Words4)) {
    return chunk(arch::lane() / (arch::wave_size / 2), 2 * step);
  } else {
    const Words4 low = chunk(0, 2 * step), high = chunk(0, 2 * step + 1);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
}

// K-major operand in LDS: lines are rows of a RowTile, or of a ColumnTile, which are the columns of
// the tile in global memory.
template <class Mma, class Tile, Side side>
struct SharedOperand {
  const SharedWords4* tile;
  int line = operand_line<Mma, side>();
  int first_chunk = 0;  // of a line: start of the k dimension

  typename Mma::Operand fragment(int part, int step) const {
    constexpr int part_lines = side == Side::left ? Mma::rows : Mma::columns;
    return fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
      const Offset offset = Tile::offset(line, own + first_chunk, part * part_lines, fixed);
      return (tile + offset.lane)[offset.fixed];
    });
  }
};

// MN-major operand in LDS, read with ds_read_tr: lines are columns of the tile, rows are the k
// dimension in the order of `operand_order`.
template <class Mma, class Tile>
struct TransposedOperand {
  const SharedWords4* tile;

  typename Mma::Operand fragment(int part, int step) const {
    using Layout = typename Mma::Layout;
    // 16 lanes read a block of 4 rows by 16 columns.
    const int lane = arch::lane(), column = Layout::a_row(lane, 0) / 16 * 16 + 4 * (lane % 4);
    const auto read = [&](int row) {
      const Offset offset = Tile::offset(Layout::lane_row(lane) + lane % 16 / 4, column / 8, row,
                                         part * Mma::rows / 8);
      const auto* own = (const SharedWords2*)tile + 2 * offset.lane + column / 4 % 2;
      return arch::ds_read_tr16(own + 2 * offset.fixed);
    };
    static_assert(layout::contiguous_rows<Layout>() == 4);
    return __builtin_shufflevector(read(Mma::depth * step),
                                   read(Mma::depth * step + Layout::register_row(4)), 0, 1, 2, 3);
  }
};

// A tile of K, V, Q or dO in LDS that is read as a transposed A operand: row-major where ds_read_tr
// exists, else stored transposed.
template <bool transposing, class Mma, DType dtype, int columns, int rows>
struct SelectTransposed {
  using Tile = ColumnTile<columns, rows * element_bytes<dtype>>;
  using Operand = SharedOperand<Mma, Tile, Side::left>;
};
template <class Mma, DType dtype, int columns, int rows>
struct SelectTransposed<true, Mma, dtype, columns, rows> {
  using Tile = RowTile<columns * element_bytes<dtype>, rows, true>;
  using Operand = TransposedOperand<Mma, Tile>;
};
template <class Mma, DType dtype, int columns, int rows>
using Transposed = SelectTransposed<arch::has_ds_read_tr, Mma, dtype, columns, rows>;

// One block of a B operand that stays resident during the main loop: in registers, or in a
// wave-private LDS slot where register pressure forbids it.
template <class Mma, DType dtype, int depth, bool shared>
class ResidentOperand {
 public:
  using Tile = RowTile<depth * element_bytes<dtype>, Mma::columns>;
  static constexpr int shared_chunks = shared ? Tile::chunks : 0;

  ResidentOperand() = default;
  // load(line, chunk) returns a chunk of a line; `slot` is this wave's LDS slot of shared_chunks.
  template <class Load>
  ResidentOperand(SharedWords4* slot, Load load)
      : slot_(slot), line_(operand_line<Mma, Side::right>()) {
    const int line = line_;
    if constexpr (shared) {
      constexpr int row_chunks = depth / chunk_elements<dtype>,
                    lanes_per_line = arch::wave_size / Mma::columns;
      ROCFLASH_UNROLL
      for (int n = 0; n < row_chunks / lanes_per_line; ++n) {
        const int chunk = n * lanes_per_line + arch::lane() / Mma::columns;
        slot[Tile::offset(line, chunk)] = load(line, chunk);
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
      return SharedOperand<Mma, Tile, Side::right>{slot_, line_}.fragment(part, step);
    } else {
      return fragment_[step];
    }
  }

  // LDS addresses are recomputed after this point and not kept in registers across the loop.
  void rematerialize_addresses() {
    if constexpr (shared) line_ = arch::opaque_vgpr(line_);
  }
  // Conversions of the fragments are recomputed after this point: the emulated MMA converts bf16 to
  // f32 for each k-step, and hoisting the results would take too many registers.
  void rematerialize_elements() {
    ROCFLASH_UNROLL
    for (auto& fragment : fragment_) arch::pin_vgpr(fragment);
  }

 private:
  static constexpr int steps = depth / Mma::depth;
  SharedWords4* slot_;
  int line_;
  typename Mma::Operand fragment_[shared ? 1 : steps];
};

// Completes an operand of which each half of the wave holds one chunk.
template <class Mma>
typename Mma::Operand operand_of(Words4 own) {
  if constexpr (sizeof(typename Mma::Operand) == sizeof(Words4)) {
    return own;
  } else {
    return arch::both_halves(own);
  }
}

// Elements converted to the B operand of the next GEMM: rows become the k dimension, in the order
// of `operand_order`; columns are the lines. `Narrow` converts and packs two elements.
template <class Tile, class Narrow>
struct Rounded {
  using Mma = typename Tile::Mma;
  const Tile& tile;
  Narrow narrow;

  // The chunk of a fragment that this lane holds.
  Words4 own(int part, int step) const {
    constexpr int per_step = Mma::depth / order_rows * order_results;
    const float* x = tile.at[part] + step * per_step;
    return {narrow(x[0], x[1]), narrow(x[2], x[3]), narrow(x[4], x[5]), narrow(x[6], x[7])};
  }
  typename Mma::Operand fragment(int part, int step) const {
    return operand_of<Mma>(own(part, step));
  }
};

// Round to nearest even.
template <DType dtype, class Tile>
auto rounded(const Tile& tile) {
  const auto narrow = [](float low, float high) { return narrow_pair<dtype>(low, high); };
  return Rounded<Tile, decltype(narrow)>{tile, narrow};
}
// Softmax weights P, which are non-negative: the cheapest rounding to nearest (narrow_weights).
template <DType dtype, class Tile>
auto rounded_weights(const Tile& tile) {
  const auto narrow = [](float low, float high) { return narrow_weights<dtype>(low, high); };
  return Rounded<Tile, decltype(narrow)>{tile, narrow};
}

// A B operand whose fragments are in registers.
template <class Mma, int steps>
struct RegisterFragments {
  typename Mma::Operand step_[steps];
  typename Mma::Operand fragment(int, int step) const { return step_[step]; }
};

// A·B, one row block after the other. At most `together` k-steps have fragments in flight, which
// bounds register pressure; 0: no limit.
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
          if (step % together == together - 1) arch::sched_barrier();
        }
      }
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r) result.at[column][row * Mma::results + r] = sum[r];
    }
  }
  return result;
}

// c += A·B, with k as the outer loop: each fragment of B is assembled once.
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

// Stores of accumulators take four consecutive rows of a column from four consecutive registers.
// Where the halves of the wave hold alternate rows (RDNA3), they exchange first: the lower half
// gets the first eight rows of the block, the upper half the last eight.
template <class Mma>
struct Quads {
  using Layout = typename Mma::Layout;
  static constexpr bool exchanged = layout::contiguous_rows<Layout>() < 4;
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
