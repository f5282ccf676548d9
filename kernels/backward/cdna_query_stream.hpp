// Stages that the software-pipelined CDNA kernels share (cdna_fused_pipelined.hpp, amd_dv.hpp):
// iteration over query tiles, staging of lse and delta, operands in AGPRs, interleaving.
#pragma once

#include "backward/amd_dkdv.hpp"

namespace rocflash::kernel {

// Pointer to the current query tile of a tensor, through the tiles of all heads. It is incremented:
// computing the address for each tile took a quarter of the tile's time.
struct TilePointer {
  const std::byte* at;
  std::int32_t step;   // to the next tile
  std::int64_t start;  // to the next head's first tile, from a head's last one

  TilePointer(const void* first, std::int64_t row_bytes, std::int64_t head_bytes, std::int32_t rows,
              std::int32_t tiles)
      : at(arch::uniform(static_cast<const std::byte*>(first))),
        step(arch::uniform(static_cast<std::int32_t>(rows * row_bytes))),
        start(head_bytes - (tiles - 1) * rows * row_bytes) {}
  void next(bool last) { at += last ? start : std::int64_t{step}; }
  // Steps back, so that next(true) gives the first tile.
  void rewind() { at -= start; }
};

// Position in the tiles of all heads.
struct TileIndex {
  std::int32_t tile, heads;  // heads left, including this one

  bool last(std::int32_t tiles) const { return tile + 1 >= tiles; }
  TileIndex after(std::int32_t tiles) const {
    return last(tiles) ? TileIndex{0, heads - 1} : TileIndex{tile + 1, heads};
  }
};

// The query tiles that attend to a workgroup's keys, for all heads of the GQA group.
template <class Types>
struct QueryTileRange {
  static constexpr int streamed = Types::tile.streamed;

  std::int32_t first_query, tiles;  // of each head
  std::int32_t gqa_group, sq, first_head;
  std::int64_t first_row, batch;

  QueryTileRange(const BackwardArguments& a, const SequenceView& sequence, const WorkTile& item,
                 std::int32_t block_begin)
      : gqa_group(arch::uniform(static_cast<std::int32_t>(a.problem.gqa_group()))),
        sq(arch::uniform(sequence.sq)),
        first_head(item.head * gqa_group),
        batch(sequence.batch) {
    const Range visible =
        AttendingQueries(a.problem.visibility, sequence, block_begin, Types::tile.owned).any;
    first_query = arch::uniform(static_cast<std::int32_t>(visible.begin));
    tiles = arch::uniform(
        visible.empty()
            ? 0
            : (static_cast<std::int32_t>(visible.end) - first_query + streamed - 1) / streamed);
    first_row = sequence.q_row + first_query;
  }
  TilePointer pointer(const Rows& rows, std::int64_t bytes = element_bytes<Types::dtype>) const {
    return TilePointer(rows.data + (batch * rows.batch_stride + first_row * rows.row_stride +
                                    first_head * rows.head_stride) *
                                       bytes,
                       rows.row_stride * bytes, rows.head_stride * bytes, streamed, tiles);
  }
  static std::int32_t row_bytes(const Rows& rows) {
    return arch::uniform(static_cast<std::int32_t>(rows.row_stride * element_bytes<Types::dtype>));
  }
  std::int32_t rows_of(TileIndex index) const {
    const std::int32_t left = sq - first_query - index.tile * streamed;
    return index.heads <= 0 ? 0 : left < streamed ? left : streamed;
  }
  TileIndex first() const { return {0, tiles > 0 ? gqa_group : 0}; }
  // The tiles that end before `query`.
  std::int32_t tiles_to(std::int32_t query) const {
    const std::int32_t n = query < first_query ? 0 : (query - first_query) / streamed;
    return arch::uniform(n < tiles ? n : tiles);
  }
};

// Stages lse and delta of a query tile through registers to LDS. All waves load and store the same
// values, which avoids a branch: lanes have lse of all queries, then delta.
template <class Types>
class RowStatisticsStaging {
  static constexpr int rows = Types::tile.streamed, rounds = 2 * rows / arch::wave_size;

 public:
  static constexpr int elements = 2 * rows;
  using LdsFloat = ROCFLASH_SHARED float;

  RowStatisticsStaging(const RowStatistic& lse, const RowStatistic& delta, std::int64_t batch,
                       std::int32_t head, std::int64_t first, std::int32_t tiles)
      : lse_(lse, tiles), delta_(delta, tiles) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const RowStatistic& from = is_lse(n) ? lse : delta;
      from_[n] = &from.at(batch, head, first);
      own_[n] = row(n) * from.query_stride;
    }
  }
  // `count` is at least 1.
  void load(std::int32_t count) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n)
      value_[n] = arch::load(from_[n] + (row(n) < count ? own_[n] : 0));
  }
  void next(bool last) {
    const std::int64_t lse = lse_.next(last), delta = delta_.next(last);
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) from_[n] += is_lse(n) ? lse : delta;
  }
  void store(LdsFloat* to, std::int32_t count) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const float lse = row(n) < count ? value_[n] : infinity,
                  delta = row(n) < count ? value_[n] : 0.0f;
      // An opaque lane, since its address would occupy a VGPR from tile to tile.
      to[n * arch::wave_size + arch::opaque_lane()] =
          is_lse(n) ? Types::specialized_base(lse) : delta;
    }
  }

 private:
  static int number(int n) { return n * arch::wave_size + arch::lane(); }
  static int row(int n) { return number(n) % rows; }
  static bool is_lse(int n) { return number(n) < rows; }

  // Lane-invariant strides: to the next tile, and to the first tile of the next head.
  struct Steps {
    std::int64_t step, start;
    Steps(const RowStatistic& from, std::int32_t tiles)
        : step(rows * from.query_stride),
          start(from.head_stride - (tiles - 1) * rows * from.query_stride) {}
    std::int64_t next(bool last) const { return last ? start : step; }
  };
  Steps lse_, delta_;
  const float* from_[rounds];
  std::int64_t own_[rounds];
  float value_[rounds];
};

// lse of the masked scores of a tile becomes +infinity, so that P is 0. `first_query` is the
// tile's, `visible_to_all` the queries whose tiles need no mask.
template <class Types, int quads>
void mask_lse(Float4 (&lse)[quads], const KeyView& key, Span visible_to_all,
              std::int32_t first_query) {
  if (__builtin_expect(first_query < visible_to_all.begin ||
                           first_query + Types::tile.streamed > visible_to_all.end,
                       false)) {
    const std::int32_t query = first_query + Types::Scores::lane_row();
    ROCFLASH_UNROLL
    for (int i = 0; i < 4 * quads; ++i) {
      if (!key.visible_to(query + Types::Scores::row(i))) lse[i / 4][i % 4] = infinity;
    }
  }
}

// Loop-invariant operands pinned to AGPRs. Otherwise the compiler spreads the VGPRs over all values
// and copies these back and forth.
template <class Mma, int steps, class Lines>
RegisterFragments<Mma, steps> to_agprs(const Lines& lines) {
  RegisterFragments<Mma, steps> kept;
  ROCFLASH_UNROLL
  for (int n = 0; n < steps; ++n) {
    kept.step_[n] = lines.fragment(0, n);
    asm volatile("" : "+a"(kept.step_[n]));
  }
  return kept;
}

// At step n: the share of `total` items of one of `steps` steps from `first` on.
template <int n, class Body>
void distribute(int first, int steps, int total, Body&& body) {
  if (n < first || n >= first + steps) return;
  ROCFLASH_UNROLL
  for (int i = (n - first) * total / steps; i < (n - first + 1) * total / steps; ++i) body(i);
}

}  // namespace rocflash::kernel
