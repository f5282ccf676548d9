// Decode on Hopper over few keys, where no option asks for more than decode/clusters.hpp has. The general schedule, and
// that for many keys, is decode/sm80.hpp; here each instruction counts, and a second launch would take as long as this one.
//
//   registers       q, the scores of one tile, outputs
//   shared memory   for each warp `stages` tiles of k and v, one in use and the others on their way; at the end
//                   its results
//
// Warps of a cluster take tiles by turns, so that the first tiles can be asked for before the number of keys is known. At
// the end its workgroups read each other's results from shared memory.
#pragma once

#include <type_traits>

#include "decode/clusters.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct ClusterTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static constexpr int waves = tile.waves(arch::wave_size);

  using Mma = arch::Mma<dtype>;
  static constexpr int row_bytes = bucket * number_bytes<dtype>;
  using Rows = std::conditional_t<spec.operation == Operation::decode_long, AlignedRows<row_bytes>,
                                  SpacedRows<row_bytes>>;
  using KeyOperand = RightRows<Mma, Rows>;       // Kᵀ
  using ValueOperand = RightColumns<Mma, Rows>;  // V
  using Scores = WarpTile<Mma, tile.rows, tile.keys>;
  using Outputs = WarpTile<Mma, tile.rows, bucket>;
  static constexpr int lane_queries = Scores::lane_rows;

  static constexpr int tile_bytes = tile.keys * Rows::bytes, stage_bytes = 2 * tile_bytes,
                       warp_bytes = tile.stages * stage_bytes;
  static_assert(tile.dynamic_shared == waves * warp_bytes);

  static SharedAddress stage(int n) {  // of this warp: k, then v
    return arch::shared_begin() +
           static_cast<std::uint32_t>(arch::wave() * warp_bytes + n * stage_bytes);
  }
  // A warp's results at the end: f32 rows, and their lse.
  static constexpr int result_bytes = bucket * 4 + 32;
  static_assert(tile.rows * (result_bytes + 4) <= warp_bytes);
  static constexpr int result_lse = tile.rows * result_bytes;
  static SharedAddress results(int warp = 0) {
    return arch::shared_begin() + static_cast<std::uint32_t>(warp * warp_bytes);
  }
};

// The tiles of k and v of one warp on their way to shared memory, past the registers.
template <KernelSpec spec>
class RowStream {
  using Types = ClusterTypes<spec>;
  using Tile = typename Types::Rows;
  static constexpr bool once = spec.operation == Operation::decode_long;  // nobody wants them again
  static constexpr int keys = Types::tile.keys, step = arch::wave_size / Tile::chunks,
                       rounds = keys / step;

 public:
  RowStream(const ClusterArguments& a, int batch, int kv_head)
      : finder_(a, batch),
        row_(arch::lane() / Tile::chunks),
        chunk_(arch::lane() % Tile::chunks),
        to_(static_cast<std::uint32_t>(Tile::offset(row_, chunk_))),
        whole_rows_(a.k.bytes == Tile::chunks * 16 && a.v.bytes == Tile::chunks * 16) {
    k_ = a.k.data + kv_head * a.k.head_stride + row_ * a.k.row_stride + 16 * chunk_;
    v_ = a.v.data + kv_head * a.v.head_stride + row_ * a.v.row_stride + 16 * chunk_;
  }

  // Looks up where the tile at `begin` lies: a tile ahead, as that takes a load.
  void find(std::int32_t begin) { place_ = finder_.find(begin); }
  // Starts the copies of that tile; there are `limit` keys in all.
  void start(const ClusterArguments& a, std::int32_t begin, std::int32_t limit,
             SharedAddress stage) const {
    const std::int32_t left = limit - begin;
    if (a.in_runs && left >= keys && whole_rows_) {
      copy_run(k_ + place_.page * a.k.batch_stride + place_.row * a.k.row_stride,
               step * a.k.row_stride, stage);
      copy_run(v_ + place_.page * a.v.batch_stride + place_.row * a.v.row_stride,
               step * a.v.row_stride, stage + Types::tile_bytes);
    } else {
      copy_rows(a.k, k_, begin, left, stage);
      copy_rows(a.v, v_, begin, left, stage + Types::tile_bytes);
    }
  }

 private:
  void copy_run(const std::byte* from, std::int64_t stride, SharedAddress tile) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const SharedAddress to = Tile::down(tile + to_, n * step);
      if constexpr (once) {
        arch::copy_async_once(to, from);
      } else {
        arch::copy_async(to, from);
      }
      from += stride;
    }
  }
  // Row by row; zeros where there is no row or column. It is rare, and its code should not lie between what is not.
  void copy_rows(const ByteRows& rows, const std::byte* first, std::int32_t begin,
                 std::int32_t left, SharedAddress tile) const {
#pragma unroll 1
    for (int n = 0; n < rounds; ++n) {
      const int row = row_ + n * step;
      const bool there = row < left && 16 * chunk_ < rows.bytes;
      const RowPlace place = finder_.find(begin + (row < left ? row : 0));
      const std::byte* from = first + place.page * rows.batch_stride +
                              (std::int64_t{place.row} - row_) * rows.row_stride;
      arch::copy_async(Tile::down(tile + to_, n * step), there ? from : rows.data, there);
    }
  }

  RowFinder finder_;
  RowPlace place_ = {};
  int row_, chunk_;  // of the lane
  std::uint32_t to_;
  bool whole_rows_;
  const std::byte *k_, *v_;  // in row 0 of page 0
};

// The end of a warp's work: each row divided by its sum, in f32, and its lse, in shared memory.
template <KernelSpec spec>
void finish_rows(const ClusterArguments& a, const ClusterItem& item, const OwnTiles& tiles,
                 std::int32_t sk, const OnlineSoftmax (&softmax)[ClusterTypes<spec>::lane_queries],
                 const typename ClusterTypes<spec>::Outputs& out) {
  using Types = ClusterTypes<spec>;
  using Outputs = typename Types::Outputs;
  constexpr int lane_queries = Types::lane_queries;
  const int lane = arch::lane();
  const SharedAddress results = Types::results(arch::wave());
  arch::wave_barrier();  // nobody reads tiles any more
  float factors[lane_queries];
  BrokenRows broken;
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    const Normaliser normaliser =
        normalise(softmax[i].reference, row_sum(softmax[i].sum), false, 0.0f);
    factors[i] = normaliser.factor;
    const int row = Outputs::row(lane, i);
    const SharedAddress to = results + static_cast<std::uint32_t>(row * Types::result_bytes +
                                                                  4 * Outputs::lane_column(lane));
    if (lane % row_lanes == 0)
      store_float(results + static_cast<std::uint32_t>(Types::result_lse + 4 * row),
                  normaliser.lse);
    float probe = 0;  // NaN once an output is not finite
    ROCFLASH_UNROLL
    for (int n = 0; n < Outputs::lane_columns; n += 2) {
      const Float2 x{out.at(i, n), out.at(i, n + 1)};
      probe = __builtin_fmaf(x.y, 0.0f, __builtin_fmaf(x.x, 0.0f, probe));
      arch::store_shared(to + static_cast<std::uint32_t>(4 * Outputs::column(n)),
                         __builtin_bit_cast(Words2, x * normaliser.factor));
    }
    broken.add(i, row < item.rows && probe != 0);
  }
  arch::wave_barrier();
  while (broken.any()) {
    const auto taken = broken.take();
    const RowNormal normal(taken, softmax, factors);
    const int row = Outputs::row(taken.first_lane, taken.which);
    const SharedAddress to = results + static_cast<std::uint32_t>(row * Types::result_bytes);
    repair_own<spec.dtype>(
        a, item, tiles, row, sk, normal, 0, a.problem.value_dim,
        [&](float lse) {
          store_float(results + static_cast<std::uint32_t>(Types::result_lse + 4 * row), lse);
        },
        [&](int column, float x) { store_float(to + static_cast<std::uint32_t>(4 * column), x); });
  }
}

// Attention of a block of rows over the keys of each warp; its results are in shared memory then.
template <KernelSpec spec>
void attend_to_tiles(const ClusterArguments& a, const ClusterItem& item) {
  using Types = ClusterTypes<spec>;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;
  constexpr int lane_queries = Types::lane_queries, ahead = tile.stages - 1;

  // The first tiles start on their way before the number of keys is known, whatever of them will be in use.
  const int lane = arch::lane();
  const OwnTiles tiles{(item.rank * Types::waves + arch::wave()) * tile.keys,
                       a.cluster * Types::waves * tile.keys, tile.keys};
  RowStream<spec> stream(a, item.batch, item.kv_head);
  arch::wait_for_launch_before();
#pragma unroll 1
  for (int n = 0; n < ahead; ++n) {
    const std::int32_t begin = tiles.first + n * tiles.step;
    if (begin < a.keys) {
      stream.find(begin);
      stream.start(a, begin, a.keys, Types::stage(n));
    }
    arch::commit_copies();
  }
  arch::let_next_launch_start();
  const std::int32_t sk = item.keys(a);
  const ClusterQueries<spec.dtype, spec.bucket> q(a, item);
  std::int32_t end[lane_queries], common_end = item.end_of(a, 0, sk);
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) end[i] = item.end_of(a, Scores::row(lane, i), sk);
  stream.find(tiles.first + ahead * tiles.step);

  OnlineSoftmax softmax[lane_queries];
  typename Types::Outputs out = {};
  int stage = 0, free = ahead;
  for (std::int32_t begin = tiles.first; begin < sk; begin += tiles.step) {
    arch::wait_for_copies<ahead - 1>();
    arch::wave_barrier();  // the tile is there, and nobody reads the one before it any more
    if (const std::int32_t next = begin + ahead * tiles.step; next < sk) {
      stream.start(a, next, sk, Types::stage(free));
      stream.find(next + tiles.step);
    }
    arch::commit_copies();
    free = stage;
    const SharedAddress k = Types::stage(stage), v = k + Types::tile_bytes;
    stage = stage + 1 == tile.stages ? 0 : stage + 1;
    if (begin + tile.keys > sk) clear_rows<typename Types::Rows>(v, sk - begin, tile.keys);

    // scores = Q · Kᵀ
    Scores scores = {};
    add_product<spec.bucket>(scores, q,
                             typename Types::KeyOperand{
                                 operand_address<typename Types::Rows>(k, matrices_across(lane))});
    if (begin + tile.keys > common_end) {
      for_each<lane_queries>([&](int i) {
        ROCFLASH_UNROLL
        for (int n = 0; n < Scores::lane_columns; ++n)
          scores.at(i, n) = begin + Scores::lane_column(lane) + Scores::column(n) < end[i]
                                ? scores.at(i, n)
                                : -infinity;
      });
    }
    follow_largest<Types>(softmax, scores, a.unit, out);

    // out += P · V
    weigh_values<Types, false>(
        softmax, scores, a.unit,
        typename Types::ValueOperand{operand_address<typename Types::Rows>(v, matrices_down(lane))},
        out, lane, [](int, int) { return 0u; });
  }
  arch::wait_for_copies<0>();  // also for tiles that were asked for in vain
  finish_rows<spec>(a, item, tiles, sk, softmax, out);
}

template <KernelSpec spec>
void decode_clusters(const ClusterArguments& a) {
  using Types = ClusterTypes<spec>;
  const ClusterItem item(a, Types::tile.rows);
  attend_to_tiles<spec>(a, item);
  merge_results<Types, true>(
      a, item, [&](std::int32_t query, std::int32_t head, int column, Float4 value, float total) {
        store_result<spec.dtype>(a, item.batch, query, head, column, value, total);
      });
}

}  // namespace rocflash::kernel
