// LDS tiles in chunks of 16 bytes with an XOR swizzle by the row: eight lanes that read the same
// chunk column of eight consecutive rows are bank-conflict-free, without padding.
#pragma once

#include "arch/arch.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

inline constexpr int chunk_bytes = 16;
template <DType dtype>
inline constexpr int chunk_elements = chunk_bytes / element_bytes<dtype>;

using SharedWords4 = ROCFLASH_SHARED Words4;
using SharedWords2 = ROCFLASH_SHARED Words2;

// Offset of a chunk: a lane-dependent term and a compile-time term. Fixed rows are multiples of
// eight and fixed chunks share no bit with the lane's chunk. So few lane-dependent addresses are
// live, and the constant goes into the DS instruction's offset field. Writers pass everything as
// lane-dependent.
struct Offset {
  int lane, fixed;
};

// Row-major tile. A lane reads a chunk of its row; with ds_read_tr (`transposing`) it reads half a
// chunk, and 32 lanes read four adjacent chunks of four consecutive rows.
template <int row_bytes, int rows, bool transposing = false>
struct RowTile {
  // Rounded up to 128-byte lines: 96 columns of two bytes are padded to 128.
  static constexpr int row_chunks = (row_bytes + 127) / 128 * 8;
  static constexpr int chunks = rows * row_chunks;

  static int offset(int row, int chunk) { return row * row_chunks + (chunk ^ swizzle(row)); }
  static Offset offset(int row, int chunk, int fixed_row, int fixed_chunk) {
    return {row * row_chunks + (chunk ^ swizzle(row) ^ (fixed_chunk % period)),
            fixed_row * row_chunks + fixed_chunk / period * period};
  }

 private:
  static constexpr int period = row_chunks % arch::lds_bank_chunks == 0 ? arch::lds_bank_chunks : 8;
  static constexpr int swizzle(int row) {
    // Where one row does not cover all banks, two rows do.
    const int line = period == arch::lds_bank_chunks ? row : row / 2;
    if (transposing) return 4 * (line % (period / 4));
    // Writers of 4x4 blocks store to four chunks of rows n and n + 8 at a time.
    return period == 8 && line == row ? (line ^ line / 8 % 2 * 4) % period : line % period;
  }
};

// Transposed tile: one LDS row per column of the tile in global memory, its elements in the order
// of `operand_order` (tile/operand_order.hpp).
template <int columns, int column_bytes>
struct ColumnTile {
  static constexpr int row_chunks = column_bytes / chunk_bytes;
  static constexpr int chunks = columns * row_chunks;
  static_assert(row_chunks == 8 || row_chunks == 4 || row_chunks == 2);

  static int offset(int column, int chunk) { return first(column) + (chunk ^ swizzle(column)); }
  static Offset offset(int column, int chunk, int fixed_column, int fixed_chunk) {
    return {first(column) + (chunk ^ swizzle(column) ^ fixed_chunk ^ swizzle(fixed_column)),
            first(fixed_column)};
  }

 private:
  // Readers access the same chunk of consecutive columns; writers of 4x4 blocks access every fourth
  // column. Where a 128-byte line holds two columns, they are four apart: both access patterns are
  // bank-conflict-free.
  static constexpr int first(int column) {
    if (row_chunks != 4) return column * row_chunks;
    return 8 * (column / 8 * 4 + column % 4) + column / 4 % 2 * 4;
  }
  static constexpr int swizzle(int column) {
    if (row_chunks == 4) return (column ^ column / 8) % 4;
    constexpr int rows_in_line = 8 / row_chunks;
    return ((column / rows_in_line) ^ (column / 8)) % row_chunks;
  }
};

}  // namespace rocflash::kernel
