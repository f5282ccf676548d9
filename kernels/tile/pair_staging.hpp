// A tile that is needed in LDS both as rows and transposed, on its way there from global memory: loaded
// once, stored twice. What tile/staging.hpp says of registers and of `Block` holds here too; where
// registers are too few, `copy` does both steps at once.
#pragma once

#include "tile/staging.hpp"

namespace rocflash::kernel {

// Where reads from LDS transpose: both are tiles of rows, each with the swizzle that suits its readers.
template <bool transposing, class Block, class Layout, class RowTile, class ColumnTile, DType dtype,
          int columns, int rows, int threads>
class PairStaging {
 public:
  template <class Source>
  explicit PairStaging(const Source& source) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const Task task(arch::thread() + n * threads);
      from_[n] = task.template from<Block>(source);
      to_row_[n] = RowTile::place(task.row, task.chunk);
      to_column_[n] = ColumnTile::place(task.row, task.chunk);
    }
  }
  void load(const Block& block) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (there(n)) words_[n] = block.load8(from_[n]);
    }
  }
  void store(SharedWords4* row_tile, SharedWords4* column_tile) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (!there(n)) continue;
      row_tile[to_row_[n]] = words_[n];
      column_tile[to_column_[n]] = words_[n];
    }
  }
  template <class Source>
  static void copy(const Source& source, const Block& block, SharedWords4* row_tile,
                   SharedWords4* column_tile) {
    _Pragma("clang loop unroll(disable)") for (int n = arch::thread(); n < tasks; n += threads) {
      const Task task(n);
      const Words4 words = block.load8(task.template from<Block>(source));
      row_tile[RowTile::place(task.row, task.chunk)] = words;
      column_tile[ColumnTile::place(task.row, task.chunk)] = words;
    }
  }

 private:
  static constexpr int row_chunks = columns / chunk_numbers<dtype>, tasks = rows * row_chunks;
  static constexpr int rounds = (tasks + threads - 1) / threads;
  static bool there(int n) { return tasks % threads == 0 || arch::thread() + n * threads < tasks; }

  struct Task {
    int row, chunk;
    explicit Task(int n) : row(n / row_chunks), chunk(n % row_chunks) {}
    template <class B, class Source>
    typename B::Place from(const Source& source) const {
      return B::place(source, row, chunk_numbers<dtype> * chunk);
    }
  };

  typename Block::Place from_[rounds];
  int to_row_[rounds], to_column_[rounds];
  Words4 words_[rounds];
};

// Elsewhere each thread takes blocks of four rows by four columns, as ColumnStaging does.
template <class Block, class Layout, class RowTile, class ColumnTile, DType dtype, int columns,
          int rows, int threads>
class PairStaging<false, Block, Layout, RowTile, ColumnTile, dtype, columns, rows, threads> {
  static_assert(number_bytes<dtype> == 2);

 public:
  template <class Source>
  explicit PairStaging(const Source& source) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const Task task(arch::thread() + n * threads);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        from_[n][e] = Block::place(source, task.row(e), task.column);
        to_row_[n][e] = to_row(task, e);
        to_column_[n][e] = task.to(e);
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
  void store(SharedWords4* row_tile, SharedWords4* column_tile) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (!there(n)) continue;
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        ((SharedWords2*)row_tile)[to_row_[n][e]] = words_[n][e];
        ((SharedWords2*)column_tile)[to_column_[n][e]] = column_of(words_[n], e);
      }
    }
  }
  template <class Source>
  static void copy(const Source& source, const Block& block, SharedWords4* row_tile,
                   SharedWords4* column_tile) {
    _Pragma("clang loop unroll(disable)") for (int n = arch::thread(); n < tasks; n += threads) {
      const Task task(n);
      Words2 words[4];
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e)
        words[e] = block.load4(Block::place(source, task.row(e), task.column));
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        ((SharedWords2*)row_tile)[to_row(task, e)] = words[e];
        ((SharedWords2*)column_tile)[task.to(e)] = column_of(words, e);
      }
    }
  }

 private:
  using Task = QuadTask<Layout, ColumnTile, columns>;
  static int to_row(const Task& task, int e) {
    return 2 * RowTile::place(task.row(e), task.column / chunk_numbers<dtype>) +
           task.column / 4 % 2;
  }

  static constexpr int tasks = (rows / 4) * (columns / 4);
  static constexpr int rounds = (tasks + threads - 1) / threads;
  static bool there(int n) { return tasks % threads == 0 || arch::thread() + n * threads < tasks; }

  typename Block::Place from_[rounds][4];
  int to_row_[rounds][4], to_column_[rounds][4];
  Words2 words_[rounds][4];
};

}  // namespace rocflash::kernel
