// Tiles of k and v on their way from memory to a wave of an AMD GPU: loaded into registers 16 bytes per lane at a
// time, stored to LDS as rows or transposed, or multiplied straight from there. Rows may lie in pages.
#pragma once

#include "arch/arch.hpp"
#include "attention/rows.hpp"
#include "attention/sequence.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// A tile of k or v that a wave loads 16 bytes per lane at a time, and that goes to LDS as it is, in rounds.
template <class Tile, DType dtype, int columns, int rows>
struct StagedRows {
  static constexpr int row_chunks = columns / chunk_numbers<dtype>,
                       rounds = rows * row_chunks / arch::wave_size;
  static_assert(rounds * arch::wave_size == rows * row_chunks);
  static constexpr int rounds_together = rounds < 4 ? rounds : 4;
  Words4 words[rounds];

  template <class Block>
  void load(const Rows& source, const Block& block, int lane, int n) {
    words[n] =
        block.load8(Block::offset(source, row(lane, n), chunk_numbers<dtype> * chunk(lane, n)));
  }
  void store(SharedWords4* tile, int lane, int n) const {
    tile[Tile::offset(row(lane, n), chunk(lane, n))] = words[n];
  }
  // The one form serves both.
  template <class RowsTile>
  void store_rows(SharedWords4* tile, int lane, int n) const {
    store(tile, lane, n);
  }

 private:
  static int row(int lane, int n) { return (lane + n * arch::wave_size) / row_chunks; }
  static int chunk(int lane, int n) { return (lane + n * arch::wave_size) % row_chunks; }
};

// The same for a tile that goes to LDS transposed: a lane takes chunks of four neighbouring positions
// of the order that the product wants (tile/order.hpp).
template <class Tile, class Layout, DType dtype, int columns, int rows>
struct StagedColumns {
  static constexpr int row_chunks = columns / chunk_numbers<dtype>, tasks = rows / 4 * row_chunks,
                       rounds = (tasks + arch::wave_size - 1) / arch::wave_size;
  static_assert((tasks % arch::wave_size == 0 || rounds == 1) && number_bytes<dtype> == 2);
  static constexpr int rounds_together = 1;
  Words4 words[rounds][4];

  template <class Block>
  void load(const Rows& source, const Block& block, int lane, int n) {
    if (!there(lane)) return;
    const int four = quad(lane, n);
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e)
      words[n][e] =
          block.load8(Block::offset(source, row(four, e), chunk_numbers<dtype> * chunk(lane, n)));
  }
  void store(SharedWords4* tile, int lane, int n) const {
    if (!there(lane)) return;
    const int four = quad(lane, n);
    ROCFLASH_UNROLL
    for (int c = 0; c < chunk_numbers<dtype>; ++c) {
      const int line = chunk_numbers<dtype> * chunk(lane, n) + c;
      ((SharedWords2*)tile)[2 * Tile::offset(line, four / 2) + four % 2] = column(words[n], c);
    }
  }
  // As the rows are in memory.
  template <class RowsTile>
  void store_rows(SharedWords4* tile, int lane, int n) const {
    if (!there(lane)) return;
    const int four = quad(lane, n);
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) tile[RowsTile::offset(row(four, e), chunk(lane, n))] = words[n][e];
  }

 private:
  // A tile may have fewer tasks than the wave has lanes.
  static bool there(int lane) { return tasks % arch::wave_size == 0 || lane < tasks; }
  static int row(int four, int e) {
    return four / 4 * order_rows + operand_order<Layout>(4 * (four % 4) + e);
  }
  static int quad(int lane, int n) { return (lane + n * arch::wave_size) / row_chunks; }
  static int chunk(int lane, int n) { return (lane + n * arch::wave_size) % row_chunks; }
  // Column c of four rows.
  static Words2 column(const Words4 (&rows_of)[4], int c) {
    const int word = c / 2;
    return c % 2 == 0 ? Words2{arch::low_halves(rows_of[0][word], rows_of[1][word]),
                               arch::low_halves(rows_of[2][word], rows_of[3][word])}
                      : Words2{arch::high_halves(rows_of[0][word], rows_of[1][word]),
                               arch::high_halves(rows_of[2][word], rows_of[3][word])};
  }
};

// Loads a staged tile into registers, stores it to LDS, or does both a few rounds at a time. Addresses are computed
// anew, few at a time: registers are for what is on its way.
template <class Staged, class Block>
void load_tile(Staged& staged, const Rows& source, const Block& block) {
  const int lane = arch::renewed_lane();
  ROCFLASH_UNROLL
  for (int n = 0; n < Staged::rounds; ++n) {
    staged.load(source, block, lane, n);
    if ((n + 1) % Staged::rounds_together == 0) arch::end_phase();
  }
}
template <class Staged>
void store_tile(const Staged& staged, SharedWords4* tile) {
  const int lane = arch::renewed_lane();
  ROCFLASH_UNROLL
  for (int n = 0; n < Staged::rounds; ++n) staged.store(tile, lane, n);
}
template <class Staged, class Block>
void copy_tile(Staged& staged, const Rows& source, const Block& block, SharedWords4* tile) {
  const int lane = arch::renewed_lane();
  ROCFLASH_UNROLL
  for (int first = 0; first < Staged::rounds; first += Staged::rounds_together) {
    ROCFLASH_UNROLL
    for (int n = first; n < first + Staged::rounds_together; ++n)
      staged.load(source, block, lane, n);
    ROCFLASH_UNROLL
    for (int n = first; n < first + Staged::rounds_together; ++n) staged.store(tile, lane, n);
    arch::end_phase();
  }
}

template <bool transposing, class Tile, class Layout, DType dtype, int columns, int rows>
struct ChooseStaged {
  using Type = StagedColumns<Tile, Layout, dtype, columns, rows>;
};
template <class Tile, class Layout, DType dtype, int columns, int rows>
struct ChooseStaged<true, Tile, Layout, dtype, columns, rows> {
  using Type = StagedRows<Tile, dtype, columns, rows>;
};

// A tile of k as a left operand, straight from memory.
template <class Mma, DType dtype, int columns>
struct DirectLines {
  typename Mma::Operand words[columns / Mma::depth];

  template <class Block>
  void load(const Rows& source, const Block& block) {
    const int line = operand_line<Mma, Side::left>();
    ROCFLASH_UNROLL
    for (int step = 0; step < columns / Mma::depth; ++step)
      words[step] = fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
        return block.load8(Block::offset(source, line, chunk_numbers<dtype> * (own + fixed)));
      });
  }
  typename Mma::Operand fragment(int, int step) const { return words[step]; }
};
template <class Mma, DType dtype, int columns, class Block>
void load_tile(DirectLines<Mma, dtype, columns>& lines, const Rows& source, const Block& block) {
  lines.load(source, block);
}

// Rows of a tile that lie in several pages, each found by the lanes that load it. Rows and columns that do not
// exist repeat others that do: no query gives them weight, and columns beyond the last are not used.
template <DType dtype>
class FoundRows {
 public:
  struct Offset {
    std::int32_t row, column;
  };
  static Offset offset(const Rows&, std::int32_t row, std::int32_t column) { return {row, column}; }

  FoundRows(const Rows& rows, std::int32_t caches, std::int64_t batch, std::int64_t first,
            std::int32_t count, std::int64_t head)
      : rows_(rows), batch_(batch), first_(first), head_(head), caches_(caches), count_(count) {}

  Words4 load8(Offset offset) const {
    const std::int32_t row = offset.row < count_ ? offset.row : count_ - 1,
                       column = offset.column < rows_.columns ? offset.column : 0;
    return arch::load(reinterpret_cast<const Words4*>(
        key_row<dtype>(rows_, caches_, batch_, first_ + row, head_) +
        number_bytes<dtype> * column));
  }

 private:
  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_, count_;
};

// Calls with(rows, block) for a tile of `tile_keys` rows from `key` on, of which `left` exist. A run of rows in one
// page, or in none, is seen through a descriptor whose bound ends it; other rows are found one by one.
template <DType dtype, int tile_keys, class Visit>
void visit_rows(const Rows& rows, std::int32_t caches, const SequenceView& s, std::int32_t key,
                std::int32_t left, std::int32_t head, Visit with) {
  const std::int64_t row = s.k_row + key;
  std::int64_t page = s.batch, in_page = row;
  find_page(rows, caches, page, in_page);
  if (!rows.blocks || rows.block_rows - in_page >= tile_keys) {
    with(rows, RowBlock<dtype, Variant::plain>(rows, 0, page, in_page, left, head));
  } else {
    with(rows, FoundRows<dtype>(rows, caches, s.batch, row, left, head));
  }
}

}  // namespace rocflash::kernel
