// Register tiles of NVIDIA warps and what can be done to them: products with either operand
// transposed, maxima, sums, scaling, rounding to the operand of the next product. Nothing here
// knows about attention.
//
//   WarpTile        results of products, floats that can be changed one by one
//   left operands   anything with `fragment(part, step)`: 16 rows by depth 16
//   right operands  anything with `fragment(part, step)`: depth 16 by the columns of two
//   neighbouring parts
#pragma once

#include "arch/arch.hpp"
#include "tile/matrices.hpp"
#include "tile/swizzled.hpp"

namespace rocflash::kernel {

// Calls it(0), it(1) ... it(count - 1); unlike a loop it is unrolled whatever the size of its body.
template <int count, class Do>
void for_each(Do it) {
  if constexpr (count > 1) for_each<count - 1>(it);
  it(count - 1);
}

// The same with numbers that are constants: it(Number<0>{}), it(Number<1>{}) ...
template <int value_>
struct Number {
  static constexpr int value = value_;
};
template <int count, class Do>
void static_for(Do it) {
  if constexpr (count > 1) static_for<count - 1>(it);
  it(Number<count - 1>{});
}

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

// Over the four neighbouring lanes that hold numbers of the same rows.
inline constexpr int row_lanes = 4;
inline float row_maximum(float x) {
  x = __builtin_fmaxf(x, arch::from_lane_xor(x, 1));
  return __builtin_fmaxf(x, arch::from_lane_xor(x, 2));
}
inline float row_sum(float x) {
  x += arch::from_lane_xor(x, 1);
  return x + arch::from_lane_xor(x, 2);
}
inline std::uint32_t row_union(std::uint32_t bits) {
  bits |= arch::from_lane_xor(bits, 1);
  return bits | arch::from_lane_xor(bits, 2);
}

template <class Tile>
float row_maximum(const Tile& tile, int i) {
  float x = tile.at(i, 0);
  ROCFLASH_UNROLL
  for (int n = 1; n < Tile::lane_columns; ++n) x = __builtin_fmaxf(x, tile.at(i, n));
  return row_maximum(x);
}

// The address of a lane's first row for operands from a tile in shared memory.
template <class Rows>
SharedAddress operand_address(SharedAddress tile, MatrixRow own) {
  return tile + static_cast<std::uint32_t>(Rows::place(own.row, own.chunk));
}

// A left operand whose lines are rows of a tile, as A is. `own` is operand_address(tile,
// matrices_down(lane)).
template <class Mma, class Rows>
struct LeftRows {
  SharedAddress own;
  Words4 fragment(int part, int step) const {
    return arch::load_matrices(Rows::along(own, 2 * step) +
                               static_cast<std::uint32_t>(part * Mma::rows * Rows::bytes));
  }
};
// A left operand whose lines are columns of a tile, as A transposed is; `own` by matrices_across.
template <class Mma, class Rows>
struct LeftColumns {
  SharedAddress own;
  Words4 fragment(int part, int step) const {
    return arch::load_matrices_transposed(
        Rows::along(own, 2 * part) + static_cast<std::uint32_t>(step * Mma::depth * Rows::bytes));
  }
};
// A right operand whose lines are rows of a tile, as B transposed is; `own` by matrices_across.
template <class Mma, class Rows>
struct RightRows {
  SharedAddress own;
  Words4 fragment(int part, int step) const {
    return arch::load_matrices(Rows::along(own, 2 * step) +
                               static_cast<std::uint32_t>(part * Mma::columns * Rows::bytes));
  }
};
// A right operand whose lines are columns of a tile, as B is; `own` by matrices_down.
template <class Mma, class Rows>
struct RightColumns {
  SharedAddress own;
  Words4 fragment(int part, int step) const {
    return arch::load_matrices_transposed(
        Rows::along(own, part) + static_cast<std::uint32_t>(step * Mma::depth * Rows::bytes));
  }
};

// A left operand that is used again and again: in registers, or read from shared memory each time
// where registers are too few.
template <class Mma, class Rows, int rows, int depth, bool shared>
class KeptRows {
 public:
  explicit KeptRows(SharedAddress own) : from_{own} {}
  // To be called once the tile has arrived.
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
  LeftRows<Mma, Rows> from_;
  Words4 fragment_[rows / Mma::rows][shared ? 1 : depth / Mma::depth];
};

// A tile rounded to the left operand of another product, its columns being the depth.
template <DType dtype, class Tile>
struct RoundedLeft {
  const Tile& tile;
  Words4 fragment(int part, int step) const {
    const auto &left = tile.part[part][2 * step], &right = tile.part[part][2 * step + 1];
    return {arch::narrow_two<dtype>(left.at[0], left.at[1]),
            arch::narrow_two<dtype>(left.at[2], left.at[3]),
            arch::narrow_two<dtype>(right.at[0], right.at[1]),
            arch::narrow_two<dtype>(right.at[2], right.at[3])};
  }
};
template <DType dtype, class Tile>
RoundedLeft<dtype, Tile> rounded(const Tile& tile) {
  return {tile};
}

// c += A · B, one step of the depth: fragments of A are made once.
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

// Operands of one step, loaded before others are multiplied.
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

// c += A · B, all of the depth.
template <int depth, class Mma, int rows, int columns, class A, class B>
void add_product(WarpTile<Mma, rows, columns>& c, const A& a, const B& b) {
  ROCFLASH_UNROLL
  for (int step = 0; step < depth / Mma::depth; ++step) add_step(c, a, b, step);
}

}  // namespace rocflash::kernel
