// Register staging of tiles from global memory to LDS: the loads of the next tile are in flight
// while the current one is used. Source and destination offsets of each thread are computed once.
// `Block` is a block of rows in global memory, with offset(rows, row, column), load8 and load4
// (RowBlock in attention/rows.hpp).
//
// A tile may be needed in LDS row-major, transposed, or both. It is then loaded once and stored
// twice.
#pragma once

#include "tile/operand_order.hpp"
#include "tile/shared.hpp"

namespace rocflash::kernel {

// A thread's part of `tasks` tasks that are distributed over all threads.
template <int tasks_, int threads>
struct ThreadTasks {
  static constexpr int tasks = tasks_, rounds = (tasks + threads - 1) / threads;
  static bool has_task(int n) {
    return tasks % threads == 0 || arch::thread() + n * threads < tasks;
  }
};

// Row-major staging, chunk by chunk, to one or two LDS tiles, each with the swizzle of its readers.
template <class Block, DType dtype, int columns, int rows, int threads, class... Tiles>
class ChunkStaging {
 public:
  // `thread` of `threads`. Where waves have tiles of their own, the tasks must be a multiple of the
  // threads.
  template <class Source>
  explicit ChunkStaging(const Source& source, int thread = arch::thread()) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Tasks::rounds; ++n) {
      const Task task(thread + n * threads);
      from_[n] = task.from(source);
      ROCFLASH_UNROLL
      for (int t = 0; t < count; ++t) to_[n][t] = task.to(t);
    }
  }
  void load(const Block& block) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Tasks::rounds; ++n) {
      if (Tasks::has_task(n)) words_[n] = block.load8(from_[n]);
    }
  }
  template <class... To>
  void store(To... tiles) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < stores; ++n) store_one(n, tiles...);
  }
  // The stores one by one, for schedules that interleave them.
  static constexpr int stores =
      ThreadTasks<rows * columns / chunk_elements<dtype>, threads>::rounds;
  template <class... To>
  void store_one(int n, To... tiles) const {
    if (!Tasks::has_task(n)) return;
    SharedWords4* const to[] = {tiles...};
    ROCFLASH_UNROLL
    for (int t = 0; t < count; ++t) to[t][to_[n][t]] = words_[n];
  }
  // Load and store without a tile in flight, where register pressure forbids it.
  template <class Source, class... To>
  static void copy(const Source& source, const Block& block, To... tiles) {
    SharedWords4* const to[] = {tiles...};
    _Pragma("clang loop unroll(disable)") for (int n = arch::thread(); n < Tasks::tasks;
                                               n += threads) {
      const Task task(n);
      const Words4 words = block.load8(task.from(source));
      ROCFLASH_UNROLL
      for (int t = 0; t < count; ++t) to[t][task.to(t)] = words;
    }
  }

 private:
  static constexpr int row_chunks = columns / chunk_elements<dtype>, count = sizeof...(Tiles);
  using Tasks = ThreadTasks<rows * row_chunks, threads>;

  struct Task {
    int row, chunk;
    explicit Task(int n) : row(n / row_chunks), chunk(n % row_chunks) {}
    template <class Source>
    typename Block::Offset from(const Source& source) const {
      return Block::offset(source, row, chunk_elements<dtype> * chunk);
    }
    int to(int tile) const {
      const int offsets[] = {Tiles::offset(row, chunk)...};
      return offsets[tile];
    }
  };

  typename Block::Offset from_[Tasks::rounds];
  int to_[Tasks::rounds][count];
  Words4 words_[Tasks::rounds];
};

// A 4x4 block of a tile of 16-bit elements, which one thread transposes. Sixteen adjacent threads
// have 32 columns of two quads of rows whose positions share a chunk, so that their LDS writes are
// bank-conflict-free.
template <class Layout, class Tile, int columns>
struct QuadTask {
  static constexpr int column_blocks = columns / 32;
  int column, quad;  // a quad: four adjacent positions of a column in LDS

  explicit QuadTask(int n)
      : column(4 * (n % 8 + 8 * (n / 16 % column_blocks))),
        quad(n / 8 % 2 + 2 * (n / 16 / column_blocks)) {}
  int row(int e) const { return quad / 4 * order_rows + operand_order<Layout>(4 * (quad % 4) + e); }
  // LDS offset of column `column` + e in the transposed tile, in units of 8 bytes.
  int to(int e) const { return 2 * Tile::offset(column + e, quad / 2) + quad % 2; }
  // LDS offset of row(e) in a row-major tile.
  template <class RowTile>
  int to_row(int e) const {
    return 2 * RowTile::offset(row(e), column / 8) + column / 4 % 2;
  }
};

// Column c of four rows.
inline Words2 column_of(const Words2 (&quad)[4], int c) {
  const int word = c / 2;
  return c % 2 == 0 ? Words2{arch::pack_low16(quad[0][word], quad[1][word]),
                             arch::pack_low16(quad[2][word], quad[3][word])}
                    : Words2{arch::pack_high16(quad[0][word], quad[1][word]),
                             arch::pack_high16(quad[2][word], quad[3][word])};
}

// Transposing staging of 16-bit elements; with RowTiles also row-major. The row-major tile is the
// first argument of stores then.
template <class Block, class Layout, class Tile, int columns, int rows, int threads,
          class... RowTiles>
class QuadStaging {
  static_assert(sizeof...(RowTiles) <= 1);

 public:
  template <class Source>
  explicit QuadStaging(const Source& source, int thread = arch::thread()) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Tasks::rounds; ++n) {
      const Task task(thread + n * threads);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        from_[n][e] = Block::offset(source, task.row(e), task.column);
        const int to[] = {task.template to_row<RowTiles>(e)..., task.to(e)};
        ROCFLASH_UNROLL
        for (int t = 0; t < count; ++t) to_[n][e][t] = to[t];
      }
    }
  }
  void load(const Block& block) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Tasks::rounds; ++n) {
      if (!Tasks::has_task(n)) continue;
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) words_[n][e] = block.load4(from_[n][e]);
    }
  }
  template <class... To>
  void store(To... tiles) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < stores; ++n) store_one(n, tiles...);
  }
  // The stores one by one, for schedules that interleave them.
  static constexpr int stores = 4 * ThreadTasks<(rows / 4) * (columns / 4), threads>::rounds;
  template <class... To>
  void store_one(int part, To... tiles) const {
    const int n = part / 4, e = part % 4;
    if (!Tasks::has_task(n)) return;
    SharedWords2* const to[] = {(SharedWords2*)tiles...};
    if constexpr (count == 2) to[0][to_[n][e][0]] = words_[n][e];
    to[count - 1][to_[n][e][count - 1]] = column_of(words_[n], e);
  }
  template <class Source, class... To>
  static void copy(const Source& source, const Block& block, To... tiles) {
    SharedWords2* const to[] = {(SharedWords2*)tiles...};
    _Pragma("clang loop unroll(disable)") for (int n = arch::thread(); n < Tasks::tasks;
                                               n += threads) {
      const Task task(n);
      Words2 words[4];
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e)
        words[e] = block.load4(Block::offset(source, task.row(e), task.column));
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        ((to[0][task.template to_row<RowTiles>(e)] = words[e]), ...);
        to[count - 1][task.to(e)] = column_of(words, e);
      }
    }
  }

 private:
  using Task = QuadTask<Layout, Tile, columns>;
  using Tasks = ThreadTasks<(rows / 4) * (columns / 4), threads>;
  static constexpr int count = 1 + sizeof...(RowTiles);

  typename Block::Offset from_[Tasks::rounds][4];
  int to_[Tasks::rounds][4][count];
  Words2 words_[Tasks::rounds][4];
};

template <class Block, class Tile, DType dtype, int columns, int rows, int threads>
using RowStaging = ChunkStaging<Block, dtype, columns, rows, threads, Tile>;

// Staging of a tile whose columns are the lines of an operand (ColumnTile): row-major if
// `transposing`, where ds_read_tr transposes, else transposed. With RowTiles also a row-major tile.
template <bool transposing, class Block, class Layout, class ColumnTile, DType dtype, int columns,
          int rows, int threads, class... RowTiles>
struct SelectStaging {
  static_assert(element_bytes<dtype> == 2);
  using Type = QuadStaging<Block, Layout, ColumnTile, columns, rows, threads, RowTiles...>;
};
template <class Block, class Layout, class ColumnTile, DType dtype, int columns, int rows,
          int threads, class... RowTiles>
struct SelectStaging<true, Block, Layout, ColumnTile, dtype, columns, rows, threads, RowTiles...> {
  using Type = ChunkStaging<Block, dtype, columns, rows, threads, RowTiles..., ColumnTile>;
};

}  // namespace rocflash::kernel
