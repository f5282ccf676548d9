// A tile on its way from global memory to LDS, by way of registers: the loads of the next tile are
// under way while the present one is used. Source and destination of each thread are computed once.
// `Block` knows the rows in global memory: place(rows, row, column), load8 and load4 of so many
// numbers.
#pragma once

#include "tile/order.hpp"
#include "tile/shared.hpp"

namespace rocflash::kernel {

// Rows as they are, chunk by chunk.
template <class Block, class Tile, DType dtype, int columns, int rows, int threads>
class RowStaging {
 public:
  template <class Source>
  explicit RowStaging(const Source& source) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = arch::thread() + n * threads, row = task / row_chunks,
                chunk = task % row_chunks;
      from_[n] = Block::place(source, row, chunk_numbers<dtype> * chunk);
      to_[n] = Tile::place(row, chunk);
    }
  }
  void load(const Block& block) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (there(n)) words_[n] = block.load8(from_[n]);
    }
  }
  void store(SharedWords4* tile) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (there(n)) tile[to_[n]] = words_[n];
    }
  }

 private:
  static constexpr int row_chunks = columns / chunk_numbers<dtype>, tasks = rows * row_chunks;
  static constexpr int rounds = (tasks + threads - 1) / threads;
  static bool there(int n) { return tasks % threads == 0 || arch::thread() + n * threads < tasks; }

  typename Block::Place from_[rounds];
  int to_[rounds];
  Words4 words_[rounds];
};

// Transposed, for 16-bit numbers: a thread takes blocks of four rows by four columns. Sixteen
// neighbouring threads take 32 columns of two quads of rows whose positions share a chunk, which
// keeps their writes in different banks.
template <class Block, class Layout, class Tile, int columns, int rows, int threads>
class ColumnStaging {
 public:
  template <class Source>
  explicit ColumnStaging(const Source& source) {
    constexpr int column_blocks = columns / 32;
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = arch::thread() + n * threads, block = task / 16;
      const int column = 4 * (task % 8 + 8 * (block % column_blocks));
      // A quad of positions: four neighbours of a column's numbers in LDS.
      const int quad = task / 8 % 2 + 2 * (block / column_blocks);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int row = quad / 4 * order_rows + operand_order<Layout>(4 * (quad % 4) + e);
        from_[n][e] = Block::place(source, row, column);
        to_[n][e] = 2 * Tile::place(column + e, quad / 2) + quad % 2;
      }
    }
  }
  void load(const Block& block) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (!there(n)) continue;
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) words_[n][e] = block.load4(from_[n][e]);
    }
  }
  void store(SharedWords4* tile) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (!there(n)) continue;
      ROCFLASH_UNROLL
      for (int c = 0; c < 4; ++c) ((SharedWords2*)tile)[to_[n][c]] = column(words_[n], c);
    }
  }

 private:
  static constexpr int tasks = (rows / 4) * (columns / 4);
  static constexpr int rounds = (tasks + threads - 1) / threads;
  static bool there(int n) { return tasks % threads == 0 || arch::thread() + n * threads < tasks; }

  // Column c of four rows.
  static Words2 column(const Words2 (&quad)[4], int c) {
    const int word = c / 2;
    return c % 2 == 0 ? Words2{arch::low_halves(quad[0][word], quad[1][word]),
                               arch::low_halves(quad[2][word], quad[3][word])}
                      : Words2{arch::high_halves(quad[0][word], quad[1][word]),
                               arch::high_halves(quad[2][word], quad[3][word])};
  }

  typename Block::Place from_[rounds][4];
  int to_[rounds][4];
  Words2 words_[rounds][4];
};

// A tile whose columns are to be lines of an operand: as it is where reads from LDS transpose.
template <bool transposing, class Block, class Layout, class Tile, DType dtype, int columns,
          int rows, int threads>
struct ChooseStaging {
  using Type = ColumnStaging<Block, Layout, Tile, columns, rows, threads>;
};
template <class Block, class Layout, class Tile, DType dtype, int columns, int rows, int threads>
struct ChooseStaging<true, Block, Layout, Tile, dtype, columns, rows, threads> {
  using Type = RowStaging<Block, Tile, dtype, columns, rows, threads>;
};

}  // namespace rocflash::kernel
