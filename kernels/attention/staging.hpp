// A tile of k or v on its way from global memory to LDS, by way of registers: the loads of the next
// tile are under way while the present one is computed with. Where from and where to is worked out
// once.
#pragma once

#include "attention/rows.hpp"
#include "tile/shared.hpp"

namespace rocflash::kernel {

// Rows as they are, chunk by chunk.
template <class Block, class Tile, int bucket, int keys, int threads>
class RowStaging {
 public:
  explicit RowStaging(const Rows& rows) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = arch::thread() + n * threads, row = task / row_chunks,
                chunk = task % row_chunks;
      from_[n] = Block::place(rows, row, chunk_numbers * chunk);
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
  static constexpr int row_chunks = bucket / chunk_numbers, tasks = keys * row_chunks;
  static constexpr int rounds = (tasks + threads - 1) / threads;
  static bool there(int n) { return tasks % threads == 0 || arch::thread() + n * threads < tasks; }

  typename Block::Place from_[rounds];
  int to_[rounds];
  Words4 words_[rounds];
};

// The same for v where it has to be transposed: blocks of four keys by four columns. Sixteen
// neighbouring threads take 32 columns of two quads of keys whose places share a chunk, which is
// what keeps their writes apart.
template <class Block, class Mma, class Tile, int bucket, int keys, int threads>
class ColumnStaging {
 public:
  explicit ColumnStaging(const Rows& rows) {
    constexpr int column_blocks = bucket / 32;
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = arch::thread() + n * threads, block = task / 16;
      const int column = 4 * (task % 8 + 8 * (block % column_blocks));
      const int place = task / 8 % 2 + 2 * (block / column_blocks);
      const int quad = place / 4 * 4 + Mma::quad_place(place % 4);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        from_[n][e] = Block::place(rows, Mma::quad_key(quad, e), column);
        to_[n][e] = 2 * Tile::place(column + e, place / 2) + place % 2;
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
  static constexpr int tasks = (keys / 4) * (bucket / 4);
  static constexpr int rounds = (tasks + threads - 1) / threads;
  static bool there(int n) { return tasks % threads == 0 || arch::thread() + n * threads < tasks; }

  // Column c of four keys.
  static Words2 column(const Words2 (&rows)[4], int c) {
    const int word = c / 2;
    return c % 2 == 0 ? Words2{arch::low_halves(rows[0][word], rows[1][word]),
                               arch::low_halves(rows[2][word], rows[3][word])}
                      : Words2{arch::high_halves(rows[0][word], rows[1][word]),
                               arch::high_halves(rows[2][word], rows[3][word])};
  }

  typename Block::Place from_[rounds][4];
  int to_[rounds][4];
  Words2 words_[rounds][4];
};

template <bool transposing, class Block, class Mma, class Tile, int bucket, int keys, int threads>
struct ChooseStaging {
  using Type = ColumnStaging<Block, Mma, Tile, bucket, keys, threads>;
};
template <class Block, class Mma, class Tile, int bucket, int keys, int threads>
struct ChooseStaging<true, Block, Mma, Tile, bucket, keys, threads> {
  using Type = RowStaging<Block, Tile, bucket, keys, threads>;
};

}  // namespace rocflash::kernel
