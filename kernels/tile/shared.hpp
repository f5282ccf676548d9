// Tiles of k and v in LDS, in chunks of 16 bytes (eight numbers). Chunks of a row change places by
// XOR with a function of the row, so that eight lanes that read the same column of eight
// neighbouring rows find them in different banks; there is no padding.
#pragma once

#include "arch/arch.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

inline constexpr int chunk_numbers = 8;

using SharedWords4 = ROCFLASH_SHARED Words4;
using SharedWords2 = ROCFLASH_SHARED Words2;

// A reader's chunk is told by the lane's own row and chunk and by what the compiler knows of both.
// Fixed rows are multiples of eight and fixed chunks share no bit with the lane's, so the place
// splits into one of a few lane-dependent terms and a constant, which is what the instructions'
// offset field is for. Writers give all of it as the lane's.
struct Place {
  int lane, fixed;
};

// Chunks that lie in different banks: the last bits of a chunk's place say where.
#if defined(__gfx950__)
inline constexpr int bank_chunks = 16;
#else
inline constexpr int bank_chunks = 8;
#endif

// Rows of k or v as they are in memory. A lane reads a chunk of its row, or, of v where LDS can
// transpose, half a chunk: then 32 lanes together take four neighbouring chunks of four
// neighbouring rows.
template <int bucket, int rows, bool transposing = false>
struct RowTile {
  // Whole lines of 128 bytes: 96 columns take the room of 128.
  static constexpr int row_chunks = (bucket + 63) / 64 * 8;
  static constexpr int chunks = rows * row_chunks;

  static int place(int row, int chunk) { return row * row_chunks + (chunk ^ turn(row)); }
  static Place place(int row, int chunk, int fixed_row, int fixed_chunk) {
    return {row * row_chunks + (chunk ^ turn(row) ^ (fixed_chunk % turned)),
            fixed_row * row_chunks + fixed_chunk / turned * turned};
  }

 private:
  static constexpr int turned = row_chunks % bank_chunks == 0 ? bank_chunks : 8;
  static constexpr int turn(int row) {
    // Two rows side by side fill the banks once where one does not.
    const int line = turned == bank_chunks ? row : row / 2;
    return transposing ? 4 * (line % (turned / 4)) : line % turned;
  }
};

// v transposed: a row for each column of v, with its keys side by side in the order that the
// weights come in (quad_key and quad_place of the architecture).
template <int bucket, int keys>
struct ColumnTile {
  static constexpr int row_chunks = keys / chunk_numbers;
  static constexpr int chunks = bucket * row_chunks;
  static_assert(row_chunks == 8 || row_chunks == 4 || row_chunks == 2);

  static int place(int column, int chunk) { return column * row_chunks + (chunk ^ turn(column)); }
  static Place place(int column, int chunk, int fixed_column, int fixed_chunk) {
    return {column * row_chunks + (chunk ^ turn(column) ^ fixed_chunk ^ turn(fixed_column)),
            fixed_column * row_chunks};
  }

 private:
  // Readers take the same chunk of neighbouring columns; writers, who hold 4x4 blocks, every fourth
  // column.
  static constexpr int turn(int column) {
    constexpr int rows_in_line = 8 / row_chunks;
    return ((column / rows_in_line) ^ (column / 8)) % row_chunks;
  }
};

}  // namespace rocflash::kernel
