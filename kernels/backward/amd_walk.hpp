// What schedules by hand of kernels that own keys share (amd_steps.hpp, amd_values.hpp): the way of tiles of queries
// and their addresses, lse and delta, operands laid aside, work shared out among steps.
#pragma once

#include "backward/amd_keys.hpp"

namespace rocflash::kernel {

// A row after the other of one tensor, a tile of queries at a time, then those of the next head. Addresses are
// carried along: found anew for each tile they took a quarter of its time.
struct TileWalk {
  const std::byte* at;
  std::int32_t step;   // to the next tile
  std::int64_t start;  // to the next head's first tile, from a head's last one

  TileWalk(const void* first, std::int64_t row_bytes, std::int64_t head_bytes, std::int32_t rows,
           std::int32_t tiles)
      : at(arch::uniform(static_cast<const std::byte*>(first))),
        step(arch::uniform(static_cast<std::int32_t>(rows * row_bytes))),
        start(head_bytes - (tiles - 1) * rows * row_bytes) {}
  void next(bool last) { at += last ? start : std::int64_t{step}; }
  // From here on `next` gives the first tile, if `last` is said.
  void rewind() { at -= start; }
};

// Where in the tiles of all heads a workgroup is.
struct TileTurn {
  std::int32_t tile, heads;  // heads left, this one among them

  bool last(std::int32_t tiles) const { return tile + 1 >= tiles; }
  TileTurn after(std::int32_t tiles) const {
    return last(tiles) ? TileTurn{0, heads - 1} : TileTurn{tile + 1, heads};
  }
};

// The queries that see some of a workgroup's keys, in tiles, of all heads of the key head.
template <class Types>
struct KeyWalk {
  static constexpr int streamed = Types::tile.streamed;

  std::int32_t first_query, tiles;  // of each head
  std::int32_t group, sq, first_head;
  std::int64_t first_row, batch;

  KeyWalk(const BackwardArguments& a, const SequenceView& sequence, const WorkItem& item,
          std::int32_t block_begin)
      : group(arch::uniform(static_cast<std::int32_t>(a.problem.group()))),
        sq(arch::uniform(sequence.sq)),
        first_head(item.head * group),
        batch(sequence.batch) {
    const Range seen =
        SeeingQueries(a.problem.visibility, sequence, block_begin, Types::tile.owned).any;
    first_query = arch::uniform(static_cast<std::int32_t>(seen.begin));
    tiles = arch::uniform(seen.empty()
                              ? 0
                              : (static_cast<std::int32_t>(seen.end) - first_query + streamed - 1) /
                                    streamed);
    first_row = sequence.q_row + first_query;
  }
  TileWalk walk(const Rows& rows, std::int64_t bytes = number_bytes<Types::dtype>) const {
    return TileWalk(rows.data + (batch * rows.batch_stride + first_row * rows.row_stride +
                                 first_head * rows.head_stride) *
                                    bytes,
                    rows.row_stride * bytes, rows.head_stride * bytes, streamed, tiles);
  }
  static std::int32_t row_bytes(const Rows& rows) {
    return arch::uniform(static_cast<std::int32_t>(rows.row_stride * number_bytes<Types::dtype>));
  }
  std::int32_t rows_of(TileTurn turn) const {
    const std::int32_t left = sq - first_query - turn.tile * streamed;
    return turn.heads <= 0 ? 0 : left < streamed ? left : streamed;
  }
};

// lse and delta of a tile's queries on their way to LDS. All waves load and write the same ones, which takes
// no branch: lanes have lse of all queries, then delta.
template <class Types>
class Statistics {
  static constexpr int rows = Types::tile.streamed, rounds = 2 * rows / arch::wave_size;

 public:
  static constexpr int numbers = 2 * rows;
  using Room = ROCFLASH_SHARED float;

  Statistics(const RowStatistic& lse, const RowStatistic& delta, std::int64_t batch,
             std::int32_t head, std::int64_t first, std::int32_t tiles)
      : lse_(lse, tiles), delta_(delta, tiles) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const RowStatistic& from = is_lse(n) ? lse : delta;
      from_[n] = &from.at(batch, head, first);
      own_[n] = row(n) * from.query_stride;
    }
  }
  // Of `count` queries, one at least.
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
  void store(Room* to, std::int32_t count) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const float lse = row(n) < count ? value_[n] : infinity,
                  delta = row(n) < count ? value_[n] : 0.0f;
      to[n * arch::wave_size + arch::lane()] =
          is_lse(n) ? statistic(lse, log2_e) - Types::raised : delta;
    }
  }

 private:
  static int number(int n) { return n * arch::wave_size + arch::lane(); }
  static int row(int n) { return number(n) % rows; }
  static bool is_lse(int n) { return number(n) < rows; }

  // The same for all lanes: to the next tile, and to the next head's first one.
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

// Operands of many products that stay in accumulation registers, which only matrix instructions can use: the
// compiler would share out the others among all, and copy these back and forth.
template <class Mma, int steps, class Lines>
MadeFragments<Mma, steps> laid_aside(const Lines& lines) {
  MadeFragments<Mma, steps> kept;
  ROCFLASH_UNROLL
  for (int n = 0; n < steps; ++n) {
    kept.step_[n] = lines.fragment(0, n);
    asm volatile("" : "+a"(kept.step_[n]));
  }
  return kept;
}

// At step n: a share of `total` things at each of `steps` steps from `first` on.
template <int n, class Body>
void shared_out(int first, int steps, int total, Body&& body) {
  if (n < first || n >= first + steps) return;
  ROCFLASH_UNROLL
  for (int i = (n - first) * total / steps; i < (n - first + 1) * total / steps; ++i) body(i);
}

}  // namespace rocflash::kernel
