// Tiles in LDS, in chunks of 16 bytes. Chunks of a row change places by XOR with a function of the
// row, so that eight lanes that read the same column of eight neighbouring rows find them in
// different banks; there is no padding.
#pragma once

#include "arch/arch.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

inline constexpr int chunk_bytes = 16;
template <DType dtype>
inline constexpr int chunk_numbers = chunk_bytes / number_bytes<dtype>;

using SharedWords4 = ROCFLASH_SHARED Words4;
using SharedWords2 = ROCFLASH_SHARED Words2;

// Where a reader finds a chunk: its lane's own row and chunk give one term, the part of both that
// the compiler knows gives the other. Fixed rows are multiples of eight and fixed chunks share no
// bit with the lane's, so there are few lane-dependent terms, and the constant goes into the
// instruction's offset field. Writers pass all of it as the lane's.
struct Offset {
  int lane, fixed;
};

// Rows as they are in memory. A lane reads a chunk of its row, or, where reads transpose, half a
// chunk: then 32 lanes together read four neighbouring chunks of four neighbouring rows.
template <int row_bytes, int rows, bool transposing = false>
struct RowTile {
  // Whole lines of 128 bytes: 96 columns of two bytes take the room of 128.
  static constexpr int row_chunks = (row_bytes + 127) / 128 * 8;
  static constexpr int chunks = rows * row_chunks;

  static int offset(int row, int chunk) { return row * row_chunks + (chunk ^ turn(row)); }
  static Offset offset(int row, int chunk, int fixed_row, int fixed_chunk) {
    return {row * row_chunks + (chunk ^ turn(row) ^ (fixed_chunk % turned)),
            fixed_row * row_chunks + fixed_chunk / turned * turned};
  }

 private:
  static constexpr int turned = row_chunks % arch::bank_chunks == 0 ? arch::bank_chunks : 8;
  static constexpr int turn(int row) {
    // Two rows side by side fill the banks once where one does not.
    const int line = turned == arch::bank_chunks ? row : row / 2;
    if (transposing) return 4 * (line % (turned / 4));
    // Writers that hold 4x4 blocks have four chunks of rows n and n + 8.
    return turned == 8 && line == row ? (line ^ line / 8 % 2 * 4) % turned : line % turned;
  }
};

// A tile stored transposed: one row per column of the tile in memory, with that column's numbers
// side by side in the order of `operand_order` (tile/order.hpp).
template <int columns, int column_bytes>
struct ColumnTile {
  static constexpr int row_chunks = column_bytes / chunk_bytes;
  static constexpr int chunks = columns * row_chunks;
  static_assert(row_chunks == 8 || row_chunks == 4 || row_chunks == 2);

  static int offset(int column, int chunk) { return first(column) + (chunk ^ turn(column)); }
  static Offset offset(int column, int chunk, int fixed_column, int fixed_chunk) {
    return {first(column) + (chunk ^ turn(column) ^ fixed_chunk ^ turn(fixed_column)),
            first(fixed_column)};
  }

 private:
  // Readers take the same chunk of neighbouring columns; writers, who hold 4x4 blocks, every fourth
  // column. Where a line of 128 bytes has two columns, they are four apart, so that both find them in
  // different banks.
  static constexpr int first(int column) {
    if (row_chunks != 4) return column * row_chunks;
    return 8 * (column / 8 * 4 + column % 4) + column / 4 % 2 * 4;
  }
  static constexpr int turn(int column) {
    if (row_chunks == 4) return (column ^ column / 8) % 4;
    constexpr int rows_in_line = 8 / row_chunks;
    return ((column / rows_in_line) ^ (column / 8)) % row_chunks;
  }
};

}  // namespace rocflash::kernel
