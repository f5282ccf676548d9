// A tile on its way from global memory to LDS, by way of registers: the loads of the next tile are
// under way while the present one is used. Source and destination of each thread are computed once.
// `Block` knows the rows in global memory: offset(rows, row, column), load8 and load4 of so many
// numbers.
//
// A tile may be needed in LDS as rows, transposed, or both: then it is loaded once and stored twice.
#pragma once

#include "tile/order.hpp"
#include "tile/shared.hpp"

namespace rocflash::kernel {

// What a thread does for `tasks` tasks that all threads share out.
template <int tasks_, int threads>
struct Share {
  static constexpr int tasks = tasks_, rounds = (tasks + threads - 1) / threads;
  static bool there(int n) { return tasks % threads == 0 || arch::thread() + n * threads < tasks; }
};

// Rows as they are, chunk by chunk, to one or two tiles of rows, each with the swizzle that suits its readers.
template <class Block, DType dtype, int columns, int rows, int threads, class... Tiles>
class ChunkStaging {
 public:
  // `thread` of `threads`: where waves have tiles of their own, all threads must have something to do.
  template <class Source>
  explicit ChunkStaging(const Source& source, int thread = arch::thread()) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Own::rounds; ++n) {
      const Task task(thread + n * threads);
      from_[n] = task.from(source);
      ROCFLASH_UNROLL
      for (int t = 0; t < count; ++t) to_[n][t] = task.to(t);
    }
  }
  void load(const Block& block) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Own::rounds; ++n) {
      if (Own::there(n)) words_[n] = block.load8(from_[n]);
    }
  }
  template <class... To>
  void store(To... tiles) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < stores; ++n) store_one(n, tiles...);
  }
  // The same in parts, for schedules that place them one by one.
  static constexpr int stores = Share<rows * columns / chunk_numbers<dtype>, threads>::rounds;
  template <class... To>
  void store_one(int n, To... tiles) const {
    if (!Own::there(n)) return;
    SharedWords4* const to[] = {tiles...};
    ROCFLASH_UNROLL
    for (int t = 0; t < count; ++t) to[t][to_[n][t]] = words_[n];
  }
  // Both at once, where registers are too few to keep a tile under way.
  template <class Source, class... To>
  static void copy(const Source& source, const Block& block, To... tiles) {
    SharedWords4* const to[] = {tiles...};
    _Pragma("clang loop unroll(disable)") for (int n = arch::thread(); n < Own::tasks;
                                               n += threads) {
      const Task task(n);
      const Words4 words = block.load8(task.from(source));
      ROCFLASH_UNROLL
      for (int t = 0; t < count; ++t) to[t][task.to(t)] = words;
    }
  }

 private:
  static constexpr int row_chunks = columns / chunk_numbers<dtype>, count = sizeof...(Tiles);
  using Own = Share<rows * row_chunks, threads>;

  struct Task {
    int row, chunk;
    explicit Task(int n) : row(n / row_chunks), chunk(n % row_chunks) {}
    template <class Source>
    typename Block::Offset from(const Source& source) const {
      return Block::offset(source, row, chunk_numbers<dtype> * chunk);
    }
    int to(int tile) const {
      const int places[] = {Tiles::offset(row, chunk)...};
      return places[tile];
    }
  };

  typename Block::Offset from_[Own::rounds];
  int to_[Own::rounds][count];
  Words4 words_[Own::rounds];
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
  int to(int e) const { return 2 * Tile::offset(column + e, quad / 2) + quad % 2; }
  // Where row(e) goes in a tile of rows.
  template <class RowTile>
  int to_row(int e) const {
    return 2 * RowTile::offset(row(e), column / 8) + column / 4 % 2;
  }
};

// Column c of four rows.
inline Words2 column_of(const Words2 (&quad)[4], int c) {
  const int word = c / 2;
  return c % 2 == 0 ? Words2{arch::low_halves(quad[0][word], quad[1][word]),
                             arch::low_halves(quad[2][word], quad[3][word])}
                    : Words2{arch::high_halves(quad[0][word], quad[1][word]),
                             arch::high_halves(quad[2][word], quad[3][word])};
}

// Transposed, for 16-bit numbers; also as rows where there is a tile for them, which is then named first.
template <class Block, class Layout, class Tile, int columns, int rows, int threads,
          class... RowTiles>
class QuadStaging {
  static_assert(sizeof...(RowTiles) <= 1);

 public:
  template <class Source>
  explicit QuadStaging(const Source& source, int thread = arch::thread()) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Own::rounds; ++n) {
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
    for (int n = 0; n < Own::rounds; ++n) {
      if (!Own::there(n)) continue;
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) words_[n][e] = block.load4(from_[n][e]);
    }
  }
  template <class... To>
  void store(To... tiles) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < stores; ++n) store_one(n, tiles...);
  }
  // The same in parts, for schedules that place them one by one.
  static constexpr int stores = 4 * Share<(rows / 4) * (columns / 4), threads>::rounds;
  template <class... To>
  void store_one(int part, To... tiles) const {
    const int n = part / 4, e = part % 4;
    if (!Own::there(n)) return;
    SharedWords2* const to[] = {(SharedWords2*)tiles...};
    if constexpr (count == 2) to[0][to_[n][e][0]] = words_[n][e];
    to[count - 1][to_[n][e][count - 1]] = column_of(words_[n], e);
  }
  template <class Source, class... To>
  static void copy(const Source& source, const Block& block, To... tiles) {
    SharedWords2* const to[] = {(SharedWords2*)tiles...};
    _Pragma("clang loop unroll(disable)") for (int n = arch::thread(); n < Own::tasks;
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
  using Own = Share<(rows / 4) * (columns / 4), threads>;
  static constexpr int count = 1 + sizeof...(RowTiles);

  typename Block::Offset from_[Own::rounds][4];
  int to_[Own::rounds][4][count];
  Words2 words_[Own::rounds][4];
};

template <class Block, class Tile, DType dtype, int columns, int rows, int threads>
using RowStaging = ChunkStaging<Block, dtype, columns, rows, threads, Tile>;

// A tile whose columns are to be lines of an operand (ColumnTile): as it is where reads from LDS transpose.
// With a tile of rows (RowTiles), both.
template <bool transposing, class Block, class Layout, class ColumnTile, DType dtype, int columns,
          int rows, int threads, class... RowTiles>
struct ChooseStaging {
  static_assert(number_bytes<dtype> == 2);
  using Type = QuadStaging<Block, Layout, ColumnTile, columns, rows, threads, RowTiles...>;
};
template <class Block, class Layout, class ColumnTile, DType dtype, int columns, int rows,
          int threads, class... RowTiles>
struct ChooseStaging<true, Block, Layout, ColumnTile, dtype, columns, rows, threads, RowTiles...> {
  using Type = ChunkStaging<Block, dtype, columns, rows, threads, RowTiles..., ColumnTile>;
};

}  // namespace rocflash::kernel
