// Staging of K and V tiles for one wave of an AMD GPU: global memory → VGPRs, 16 bytes per lane at
// a time, → LDS as rows or transposed, or straight to MFMA fragments. Rows may be paged.
#pragma once

#include "arch/arch.hpp"
#include "attention/rows.hpp"
#include "attention/sequence.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// A K or V tile that goes to LDS row-major, in rounds of one chunk per lane.
template <class Tile, DType dtype, int columns, int rows>
struct StagedRows {
  static constexpr int row_chunks = columns / chunk_elements<dtype>,
                       rounds = rows * row_chunks / arch::wave_size;
  static_assert(rounds * arch::wave_size == rows * row_chunks);
  static constexpr int batch_rounds = rounds < 4 ? rounds : 4;
  Words4 words[rounds];

  template <class Block>
  void load(const Rows& source, const Block& block, int lane, int n) {
    words[n] =
        block.load8(Block::offset(source, row(lane, n), chunk_elements<dtype> * chunk(lane, n)));
  }
  void store(SharedWords4* tile, int lane, int n) const {
    tile[Tile::offset(row(lane, n), chunk(lane, n))] = words[n];
  }
  // Row-major already.
  template <class RowsTile>
  void store_rows(SharedWords4* tile, int lane, int n) const {
    store(tile, lane, n);
  }

 private:
  static int row(int lane, int n) { return (lane + n * arch::wave_size) / row_chunks; }
  static int chunk(int lane, int n) { return (lane + n * arch::wave_size) % row_chunks; }
};

// The same for a tile that goes to LDS transposed: a lane takes chunks of quad_index adjacent
// positions in operand order (tile/operand_order.hpp).
template <class Tile, class Layout, DType dtype, int columns, int rows>
struct StagedColumns {
  static constexpr int row_chunks = columns / chunk_elements<dtype>, tasks = rows / 4 * row_chunks,
                       rounds = (tasks + arch::wave_size - 1) / arch::wave_size;
  static_assert((tasks % arch::wave_size == 0 || rounds == 1) && element_bytes<dtype> == 2);
  static constexpr int batch_rounds = 1;
  Words4 words[rounds][4];

  template <class Block>
  void load(const Rows& source, const Block& block, int lane, int n) {
    if (!has_task(lane)) return;
    const int quad_index = quad(lane, n);
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e)
      words[n][e] = block.load8(
          Block::offset(source, row(quad_index, e), chunk_elements<dtype> * chunk(lane, n)));
  }
  void store(SharedWords4* tile, int lane, int n) const {
    if (!has_task(lane)) return;
    const int quad_index = quad(lane, n);
    ROCFLASH_UNROLL
    for (int c = 0; c < chunk_elements<dtype>; ++c) {
      const int line = chunk_elements<dtype> * chunk(lane, n) + c;
      ((SharedWords2*)tile)[2 * Tile::offset(line, quad_index / 2) + quad_index % 2] =
          column(words[n], c);
    }
  }
  // Row-major.
  template <class RowsTile>
  void store_rows(SharedWords4* tile, int lane, int n) const {
    if (!has_task(lane)) return;
    const int quad_index = quad(lane, n);
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e)
      tile[RowsTile::offset(row(quad_index, e), chunk(lane, n))] = words[n][e];
  }

 private:
  // A tile may have fewer tasks than the wave has lanes.
  static bool has_task(int lane) { return tasks % arch::wave_size == 0 || lane < tasks; }
  static int row(int quad_index, int e) {
    return quad_index / 4 * order_rows + operand_order<Layout>(4 * (quad_index % 4) + e);
  }
  static int quad(int lane, int n) { return (lane + n * arch::wave_size) / row_chunks; }
  static int chunk(int lane, int n) { return (lane + n * arch::wave_size) % row_chunks; }
  // Column c of quad_index rows.
  static Words2 column(const Words4 (&rows_of)[4], int c) {
    const int word = c / 2;
    return c % 2 == 0 ? Words2{arch::pack_low16(rows_of[0][word], rows_of[1][word]),
                               arch::pack_low16(rows_of[2][word], rows_of[3][word])}
                      : Words2{arch::pack_high16(rows_of[0][word], rows_of[1][word]),
                               arch::pack_high16(rows_of[2][word], rows_of[3][word])};
  }
};

// Loads a tile into registers, stores it to LDS, or both in batches of rounds. Addresses are
// computed again for each batch (opaque_lane): VGPRs are for the tile in flight.
template <class Staged, class Block>
void load_tile(Staged& staged, const Rows& source, const Block& block) {
  const int lane = arch::opaque_lane();
  ROCFLASH_UNROLL
  for (int n = 0; n < Staged::rounds; ++n) {
    staged.load(source, block, lane, n);
    if ((n + 1) % Staged::batch_rounds == 0) arch::sched_barrier();
  }
}
template <class Staged>
void store_tile(const Staged& staged, SharedWords4* tile) {
  const int lane = arch::opaque_lane();
  ROCFLASH_UNROLL
  for (int n = 0; n < Staged::rounds; ++n) staged.store(tile, lane, n);
}
template <class Staged, class Block>
void load_tile_to_lds(Staged& staged, const Rows& source, const Block& block, SharedWords4* tile) {
  const int lane = arch::opaque_lane();
  ROCFLASH_UNROLL
  for (int first = 0; first < Staged::rounds; first += Staged::batch_rounds) {
    ROCFLASH_UNROLL
    for (int n = first; n < first + Staged::batch_rounds; ++n) staged.load(source, block, lane, n);
    ROCFLASH_UNROLL
    for (int n = first; n < first + Staged::batch_rounds; ++n) staged.store(tile, lane, n);
    arch::sched_barrier();
  }
}

template <bool transposing, class Tile, class Layout, DType dtype, int columns, int rows>
struct SelectStagedTile {
  using Type = StagedColumns<Tile, Layout, dtype, columns, rows>;
};
template <class Tile, class Layout, DType dtype, int columns, int rows>
struct SelectStagedTile<true, Tile, Layout, dtype, columns, rows> {
  using Type = StagedRows<Tile, dtype, columns, rows>;
};

// A K tile as left operand, loaded from global memory into fragments.
template <class Mma, DType dtype, int columns>
struct DirectFragments {
  typename Mma::Operand words[columns / Mma::depth];

  template <class Block>
  void load(const Rows& source, const Block& block) {
    const int line = operand_line<Mma, Side::left>();
    ROCFLASH_UNROLL
    for (int step = 0; step < columns / Mma::depth; ++step)
      words[step] = fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
        return block.load8(Block::offset(source, line, chunk_elements<dtype> * (own + fixed)));
      });
  }
  typename Mma::Operand fragment(int, int step) const { return words[step]; }
};
template <class Mma, DType dtype, int columns, class Block>
void load_tile(DirectFragments<Mma, dtype, columns>& lines, const Rows& source,
               const Block& block) {
  lines.load(source, block);
}

// Rows of a tile that spans several pages: each lane looks its rows up in the block table. Rows and
// columns out of bounds are clamped to valid ones: those keys are masked, those columns are unused.
template <DType dtype>
class PagedRows {
 public:
  struct Offset {
    std::int32_t row, column;
  };
  static Offset offset(const Rows&, std::int32_t row, std::int32_t column) { return {row, column}; }

  PagedRows(const Rows& rows, std::int32_t caches, std::int64_t batch, std::int64_t first,
            std::int32_t count, std::int64_t head)
      : rows_(rows), batch_(batch), first_(first), head_(head), caches_(caches), count_(count) {}

  Words4 load8(Offset offset) const {
    const std::int32_t row = offset.row < count_ ? offset.row : count_ - 1,
                       column = offset.column < rows_.columns ? offset.column : 0;
    return arch::load(reinterpret_cast<const Words4*>(
        key_row<dtype>(rows_, caches_, batch_, first_ + row, head_) +
        element_bytes<dtype> * column));
  }

 private:
  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_, count_;
};

// Calls with(rows, block) for a tile of `tile_keys` rows from `key` on, of which `left` exist. Rows
// that are contiguous (not paged, or within one page) use a buffer resource whose extent bounds
// them; others are looked up in the block table.
template <DType dtype, int tile_keys, class Visit>
void visit_rows(const Rows& rows, std::int32_t caches, const SequenceView& s, std::int32_t key,
                std::int32_t left, std::int32_t head, Visit with) {
  const std::int64_t row = s.k_row + key;
  std::int64_t page = s.batch, in_page = row;
  find_page(rows, caches, page, in_page);
  if (!rows.blocks || rows.block_rows - in_page >= tile_keys) {
    with(rows, RowBlock<dtype, Variant::specialized>(rows, 0, page, in_page, left, head));
  } else {
    with(rows, PagedRows<dtype>(rows, caches, s.batch, row, left, head));
  }
}

}  // namespace rocflash::kernel
