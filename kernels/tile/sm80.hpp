// Register tiles of NVIDIA warps: GEMM with either operand transposed, row max, scaling, conversion
// to the operand of the next GEMM. Nothing here is specific to attention.
//
//   WarpTile       MMA accumulators of a warp, accessed as individual floats
//   A operands     anything with `fragment(part, step)`: 16 rows by a k-step of 16
//   B operands     anything with `fragment(part, step)`: a k-step of 16 by the columns of two
//                  adjacent parts
#pragma once

#include "arch/arch.hpp"
#include "tile/ldmatrix_layout.hpp"
#include "tile/quads.hpp"
#include "tile/static_for.hpp"
#include "tile/swizzled.hpp"

namespace rocflash::kernel {

template <class Mma_, int rows_, int columns_>
struct WarpTile {
  using Mma = Mma_;
  using Layout = typename Mma::Layout;
  static constexpr int rows = rows_, columns = columns_;
  static constexpr int row_parts = rows / Mma::rows, column_parts = columns / Mma::columns;
  // A lane has two rows and two columns of each part.
  static constexpr int lane_rows = 2 * row_parts, lane_columns = 2 * column_parts;

  typename Mma::Result part[row_parts][column_parts];

  // The element in row i and column n of the lane: of the tile, row(lane, i) and column(n) +
  // lane_column(lane).
  float& at(int i, int n) { return part[i / 2][n / 2].at[i % 2 * 2 + n % 2]; }
  float at(int i, int n) const { return part[i / 2][n / 2].at[i % 2 * 2 + n % 2]; }
  static int row(int lane, int i) {
    return i / 2 * Mma::rows + Layout::register_row(i % 2 * 2) + Layout::lane_row(lane);
  }
  static constexpr int column(int n) {
    return n / 2 * Mma::columns + Layout::register_column(n % 2);
  }
  static int lane_column(int lane) { return Layout::lane_column(lane); }

  void scale_row(int i, float factor) {
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_columns; ++n) at(i, n) *= factor;
  }
};

template <class Tile>
float row_maximum(const Tile& tile, int i) {
  float x = tile.at(i, 0);
  ROCFLASH_UNROLL
  for (int n = 1; n < Tile::lane_columns; ++n) x = __builtin_fmaxf(x, tile.at(i, n));
  return row_maximum(x);
}

// Address of a lane's first ldmatrix row of an operand in shared memory.
template <class Rows>
SharedAddress operand_address(SharedAddress tile, MatrixRow own) {
  return tile + static_cast<std::uint32_t>(Rows::offset(own.row, own.chunk));
}
// Address of a lane's first element, for 4-byte elements that are loaded one by one; `column` is a
// multiple of 8.
template <class Rows>
SharedAddress operand_address(SharedAddress tile, TileElement own, int column) {
  own.column += column;
  return tile +
         static_cast<std::uint32_t>(Rows::offset(own.row, own.column / 4) + 4 * (own.column % 4));
}
// From an element of an even row to that of the next row.
template <class Rows>
SharedAddress next_row(SharedAddress number) {
  static_assert(Rows::xor_mask == 7);
  return (number ^ 16u) + static_cast<std::uint32_t>(Rows::bytes);
}

// K-major A operand: its rows are rows of the tile. `own` is operand_address(tile,
// matrices_down(lane)).
template <class Mma, class Rows>
struct KMajorA {
  SharedAddress own;
  Words4 fragment(int part, int step) const {
    return arch::ldmatrix_x4(Rows::along(own, 2 * step) +
                             static_cast<std::uint32_t>(part * Mma::rows * Rows::bytes));
  }
};
// M-major A operand: its rows are columns of a tile that store_results has stored, from `column`
// on.
template <class Mma, class Rows>
struct MMajorA {
  SharedAddress own;
  MMajorA(SharedAddress tile, int column, int lane) {
    MatrixRow row = matrices_across(lane);
    row.chunk += column / 8;
    own = operand_address<Rows>(tile, row);
  }
  Words4 fragment(int part, int step) const {
    return arch::ldmatrix_x4_trans(Rows::along(own, 2 * part) +
                                   static_cast<std::uint32_t>(step * Mma::depth * Rows::bytes));
  }
};
template <class Rows>
struct MMajorA<arch::Mma<DType::f32>, Rows> {
  using Mma = arch::Mma<DType::f32>;
  SharedAddress own;
  MMajorA(SharedAddress tile, int column, int lane)
      : own(operand_address<Rows>(tile, permuted_elements_down(lane), column)) {}
  Words4 fragment(int part, int step) const {
    const auto down = static_cast<std::uint32_t>(step * Mma::depth * Rows::bytes);
    const SharedAddress first = Rows::along(own, 4 * part) + down,
                        second = Rows::along(own, 4 * part + 2) + down;
    return {arch::load_shared4(first), arch::load_shared4(second),
            arch::load_shared4(next_row<Rows>(first)), arch::load_shared4(next_row<Rows>(second))};
  }
};
// K-major B operand: its columns are rows of the tile. `own` is operand_address(tile,
// matrices_across(lane)).
template <class Mma, class Rows>
struct KMajorB {
  SharedAddress own;
  Words4 fragment(int part, int step) const {
    return arch::ldmatrix_x4(Rows::along(own, 2 * step) +
                             static_cast<std::uint32_t>(part * Mma::columns * Rows::bytes));
  }
};
// N-major B operand: its columns are columns of the tile. `own` is first(tile, column, lane).
template <class Mma, class Rows>
struct NMajorB {
  SharedAddress own;
  static SharedAddress first(SharedAddress tile, int column, int lane) {
    MatrixRow row = matrices_down(lane);
    row.chunk += column / 8;
    return operand_address<Rows>(tile, row);
  }
  Words4 fragment(int part, int step) const {
    return arch::ldmatrix_x4_trans(Rows::along(own, part) +
                                   static_cast<std::uint32_t>(step * Mma::depth * Rows::bytes));
  }
};
template <class Rows>
struct NMajorB<arch::Mma<DType::f32>, Rows> {
  using Mma = arch::Mma<DType::f32>;
  SharedAddress own;
  static SharedAddress first(SharedAddress tile, int column, int lane) {
    return operand_address<Rows>(tile, elements_down(lane), column);
  }
  Words4 fragment(int part, int step) const {
    const auto down = static_cast<std::uint32_t>(step * Mma::depth * Rows::bytes);
    const SharedAddress left = Rows::along(own, 2 * part) + down,
                        right = Rows::along(own, 2 * part + 2) + down;
    return {arch::load_shared4(left), arch::load_shared4(next_row<Rows>(left)),
            arch::load_shared4(right), arch::load_shared4(next_row<Rows>(right))};
  }
};

// An A operand that stays resident during the main loop: in registers, or in shared memory where
// register pressure forbids it.
template <class Mma, class Rows, int rows, int depth, bool shared>
class ResidentA {
 public:
  explicit ResidentA(SharedAddress own) : from_{own} {}
  // Call after the tile has arrived in shared memory.
  void load() {
    if constexpr (!shared) {
      ROCFLASH_UNROLL
      for (int part = 0; part < rows / Mma::rows; ++part) {
        ROCFLASH_UNROLL
        for (int step = 0; step < depth / Mma::depth; ++step)
          fragment_[part][step] = from_.fragment(part, step);
      }
    }
  }
  Words4 fragment(int part, int step) const {
    if constexpr (shared) {
      return from_.fragment(part, step);
    } else {
      return fragment_[part][step];
    }
  }

 private:
  KMajorA<Mma, Rows> from_;
  Words4 fragment_[rows / Mma::rows][shared ? 1 : depth / Mma::depth];
};

// Accumulators converted to the A operand of the next GEMM; their columns become the k dimension.
template <DType dtype, class Tile>
class RoundedA {
 public:
  const Tile& tile;
  Words4 fragment(int part, int step) const {
    if constexpr (dtype == DType::f32) {
      const auto& own = tile.part[part][step];
      return __builtin_bit_cast(Words4, Float4{own.at[0], own.at[2], own.at[1], own.at[3]});
    } else {
      return of_pairs(tile.part[part][2 * step], tile.part[part][2 * step + 1]);
    }
  }

 private:
  static Words4 of_pairs(const typename Tile::Mma::Result& left,
                         const typename Tile::Mma::Result& right) {
    return {arch::cvt_pack<dtype>(left.at[0], left.at[1]),
            arch::cvt_pack<dtype>(left.at[2], left.at[3]),
            arch::cvt_pack<dtype>(right.at[0], right.at[1]),
            arch::cvt_pack<dtype>(right.at[2], right.at[3])};
  }
};
template <DType dtype, class Tile>
RoundedA<dtype, Tile> rounded(const Tile& tile) {
  return {tile};
}

// c += A·B for one k-step; fragments of A are assembled once.
template <class Mma, int rows, int columns, class A, class B>
void add_step(WarpTile<Mma, rows, columns>& c, const A& a, const B& b, int step) {
  using Tile = WarpTile<Mma, rows, columns>;
  Words4 left[Tile::row_parts];
  ROCFLASH_UNROLL
  for (int row = 0; row < Tile::row_parts; ++row) left[row] = a.fragment(row, step);
  ROCFLASH_UNROLL
  for (int column = 0; column < Tile::column_parts; column += 2) {
    const Words4 right = b.fragment(column, step);
    ROCFLASH_UNROLL
    for (int row = 0; row < Tile::row_parts; ++row) {
      Mma::multiply(c.part[row][column], left[row], right.x, right.y);
      Mma::multiply(c.part[row][column + 1], left[row], right.z, right.w);
    }
  }
}

// Operands of one k-step, loaded while the previous step is multiplied.
template <class Tile>
class StepOperands {
 public:
  template <class A, class B>
  void load(const A& a, const B& b, int step) {
    ROCFLASH_UNROLL
    for (int row = 0; row < Tile::row_parts; ++row) left_[row] = a.fragment(row, step);
    ROCFLASH_UNROLL
    for (int column = 0; column < Tile::column_parts; column += 2)
      right_[column / 2] = b.fragment(column, step);
  }
  void multiply(Tile& c) const {
    ROCFLASH_UNROLL
    for (int column = 0; column < Tile::column_parts; column += 2) {
      ROCFLASH_UNROLL
      for (int row = 0; row < Tile::row_parts; ++row) {
        const Words4 right = right_[column / 2];
        Tile::Mma::multiply(c.part[row][column], left_[row], right.x, right.y);
        Tile::Mma::multiply(c.part[row][column + 1], left_[row], right.z, right.w);
      }
    }
  }

 private:
  Words4 left_[Tile::row_parts], right_[Tile::column_parts / 2];
};

// c += A·B in 3xTF32, for the Mma::together k-steps from `first` on, which have a common
// accumulator. Fragments of A are split once.
template <int rows, int columns, class A, class B>
void add_steps(WarpTile<arch::Mma<DType::f32>, rows, columns>& c, const A& a, const B& b,
               int first) {
  using Mma = arch::Mma<DType::f32>;
  using Tile = WarpTile<Mma, rows, columns>;
  typename Mma::Tf32Terms left[Tile::row_parts][Mma::together];
  ROCFLASH_UNROLL
  for (int row = 0; row < Tile::row_parts; ++row) {
    ROCFLASH_UNROLL
    for (int step = 0; step < Mma::together; ++step)
      left[row][step] = Mma::split(a.fragment(row, first + step));
  }
  ROCFLASH_UNROLL
  for (int column = 0; column < Tile::column_parts; column += 2) {
    typename Mma::Sum sums[Tile::row_parts][2] = {};
    ROCFLASH_UNROLL
    for (int step = 0; step < Mma::together; ++step) {
      const typename Mma::Tf32Terms right = Mma::split(b.fragment(column, first + step));
      ROCFLASH_UNROLL
      for (int row = 0; row < Tile::row_parts; ++row) {
        Mma::template multiply<0>(sums[row][0], left[row][step], right);
        Mma::template multiply<2>(sums[row][1], left[row][step], right);
      }
    }
    ROCFLASH_UNROLL
    for (int row = 0; row < Tile::row_parts; ++row) {
      ROCFLASH_UNROLL
      for (int n = 0; n < 2 * Mma::results; ++n)
        c.part[row][column + n / Mma::results].at[n % Mma::results] +=
            sums[row][n / Mma::results].total(n % Mma::results);
    }
  }
}
// The same for other dtypes.
template <class Mma, int rows, int columns, class A, class B>
void add_steps(WarpTile<Mma, rows, columns>& c, const A& a, const B& b, int first) {
  static_assert(Mma::together == 1);
  add_step(c, a, b, first);
}

// c += A·B over the whole k dimension.
template <int depth, class Mma, int rows, int columns, class A, class B>
void add_product(WarpTile<Mma, rows, columns>& c, const A& a, const B& b) {
  static_assert(depth % (Mma::depth * Mma::together) == 0);
  ROCFLASH_UNROLL
  for (int step = 0; step < depth / Mma::depth; step += Mma::together) add_steps(c, a, b, step);
}

// Stores accumulators as a shared memory tile for KMajorA and MMajorA. `own` is the address of a
// lane's first result (own_result); the warp tile starts at a multiple of its size.
template <DType dtype, class Rows, class Tile>
SharedAddress own_result(SharedAddress tile, int row, int column, int lane) {
  const int chunk = column * element_bytes<dtype> / 16;
  const int within = dtype == DType::f32 ? 4 * (lane % 4) : 2 * Tile::lane_column(lane);
  return tile + static_cast<std::uint32_t>(Rows::offset(row + Tile::row(lane, 0), chunk) + within);
}
// Two adjacent results: of row i, in column part `column`.
template <DType dtype, class Rows, class Tile>
void store_results(SharedAddress own, const Tile& tile, int i, int column) {
  const float x = tile.at(i, 2 * column), y = tile.at(i, 2 * column + 1);
  const auto down = static_cast<std::uint32_t>(8 * i * Rows::bytes);
  if constexpr (dtype == DType::f32) {  // in the column order of permuted_elements_down
    const SharedAddress to = Rows::along(own, 2 * column) + down;
    arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
    arch::store_shared(to ^ 16u, __builtin_bit_cast(std::uint32_t, y));
  } else {
    static_assert(Tile::column_parts <= 8 && 8 % Tile::column_parts == 0);
    arch::store_shared((own ^ static_cast<std::uint32_t>(16 * column)) + down,
                       arch::cvt_pack<dtype>(x, y));
  }
}

// Stages row i of a lane's accumulators, times `factor`, in shared memory: row `row` from `column`
// on; 0 if the row is not in use. Returns NaN if an accumulator is not finite, else 0.
template <DType dtype, class Rows, class Tile>
float stage_row(const Tile& sums, int i, float factor, SharedAddress rows, int row, int column,
                int lane, bool in_use = true) {
  float probe = 0;
  ROCFLASH_UNROLL
  for (int n = 0; n < Tile::lane_columns; n += 2) {
    const float x = sums.at(i, n), y = sums.at(i, n + 1);
    probe = __builtin_fmaf(y, 0.0f, __builtin_fmaf(x, 0.0f, probe));
    const float left = in_use ? x * factor : 0.0f, right = in_use ? y * factor : 0.0f;
    if constexpr (dtype == DType::f32) {
      const int chunk = column / 4 + n + Tile::lane_column(lane) / 4;
      arch::store_shared(rows + static_cast<std::uint32_t>(Rows::offset(row, chunk) +
                                                           4 * (Tile::lane_column(lane) % 4)),
                         __builtin_bit_cast(Words2, (Float2{left, right})));
    } else {
      const int offset = Rows::offset(row, column / 8 + n / 2) + 2 * Tile::lane_column(lane);
      arch::store_shared(rows + static_cast<std::uint32_t>(offset),
                         arch::cvt_pack<dtype>(left, right));
    }
  }
  return probe;
}

}  // namespace rocflash::kernel
