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
  // Both at once, where registers are too few to keep a tile under way.
  template <class Source>
  static void copy(const Source& source, const Block& block, SharedWords4* tile) {
    _Pragma("clang loop unroll(disable)") for (int task = arch::thread(); task < tasks;
                                               task += threads) {
      const int row = task / row_chunks, chunk = task % row_chunks;
      tile[Tile::place(row, chunk)] =
          block.load8(Block::place(source, row, chunk_numbers<dtype> * chunk));
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

// One of the blocks of four rows by four columns that threads take to transpose a tile of 16-bit
// numbers. Sixteen neighbouring threads take 32 columns of two quads of rows whose positions share a
// chunk, which keeps their writes in different banks.
template <class Layout, class Tile, int columns>
struct QuadTask {
  static constexpr int column_blocks = columns / 32;
  int column, quad;  // a quad of positions: four neighbours of a column's numbers in LDS

  explicit QuadTask(int n)
      : column(4 * (n % 8 + 8 * (n / 16 % column_blocks))),
        quad(n / 8 % 2 + 2 * (n / 16 / column_blocks)) {}
  int row(int e) const { return quad / 4 * order_rows + operand_order<Layout>(4 * (quad % 4) + e); }
  // Where column + e goes, in words of eight bytes.
  int to(int e) const { return 2 * Tile::place(column + e, quad / 2) + quad % 2; }
};

// Column c of four rows.
inline Words2 column_of(const Words2 (&quad)[4], int c) {
  const int word = c / 2;
  return c % 2 == 0 ? Words2{arch::low_halves(quad[0][word], quad[1][word]),
                             arch::low_halves(quad[2][word], quad[3][word])}
                    : Words2{arch::high_halves(quad[0][word], quad[1][word]),
                             arch::high_halves(quad[2][word], quad[3][word])};
}

// Transposed, for 16-bit numbers.
template <class Block, class Layout, class Tile, int columns, int rows, int threads>
class ColumnStaging {
 public:
  template <class Source>
  explicit ColumnStaging(const Source& source) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const Task task(arch::thread() + n * threads);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        from_[n][e] = Block::place(source, task.row(e), task.column);
        to_[n][e] = task.to(e);
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
      for (int c = 0; c < 4; ++c) ((SharedWords2*)tile)[to_[n][c]] = column_of(words_[n], c);
    }
  }
  template <class Source>
  static void copy(const Source& source, const Block& block, SharedWords4* tile) {
    _Pragma("clang loop unroll(disable)") for (int n = arch::thread(); n < tasks; n += threads) {
      const Task task(n);
      Words2 words[4];
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e)
        words[e] = block.load4(Block::place(source, task.row(e), task.column));
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) ((SharedWords2*)tile)[task.to(e)] = column_of(words, e);
    }
  }

 private:
  using Task = QuadTask<Layout, Tile, columns>;
  static constexpr int tasks = (rows / 4) * (columns / 4);
  static constexpr int rounds = (tasks + threads - 1) / threads;
  static bool there(int n) { return tasks % threads == 0 || arch::thread() + n * threads < tasks; }

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
