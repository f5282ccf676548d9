// Decode on Hopper over few keys, specialized: only the options of decode/sm90_common.hpp. The
// cluster combines its splits through DSMEM, because a combine kernel would take as long as this
// one. The generic schedule is decode/sm80.hpp.
//
//   registers       Q, S of one tile, O
//   shared memory   per warp a pipeline of `stages` K and V tiles; in the epilogue its results
//
// Warps of a cluster take tiles round-robin, so that the loads of the first tiles can be issued
// before the number of keys is known.
#pragma once

#include <type_traits>

#include "decode/sm90_common.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct ClusterTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static constexpr int waves = tile.waves(arch::wave_size);

  using Mma = arch::Mma<dtype>;
  static constexpr int row_bytes = bucket * element_bytes<dtype>;
  using Rows = std::conditional_t<spec.schedule == Schedule::splitkv, SwizzledRows<row_bytes>,
                                  PaddedRows<row_bytes>>;
  using KeyOperand = KMajorB<Mma, Rows>;    // Kᵀ
  using ValueOperand = NMajorB<Mma, Rows>;  // V
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
  // A warp's results in the epilogue: f32 rows with padding, and their LSE.
  static constexpr int result_bytes = bucket * 4 + 32;
  static_assert(tile.rows * (result_bytes + 4) <= warp_bytes);
  static constexpr int result_lse = tile.rows * result_bytes;
  static SharedAddress results(int warp = 0) {
    return arch::shared_begin() + static_cast<std::uint32_t>(warp * warp_bytes);
  }
};

// cp.async loads of the K and V tiles of one warp.
template <KernelSpec spec>
class KvLoader {
  using Types = ClusterTypes<spec>;
  using Tile = typename Types::Rows;
  // Split-KV reads each row once.
  static constexpr bool evict_first = spec.schedule == Schedule::splitkv;
  static constexpr int keys = Types::tile.keys, step = arch::wave_size / Tile::chunks,
                       rounds = keys / step;

 public:
  KvLoader(const ClusterArguments& a, int batch, int kv_head)
      : finder_(a, batch),
        row_(arch::lane() / Tile::chunks),
        chunk_(arch::lane() % Tile::chunks),
        to_(static_cast<std::uint32_t>(Tile::offset(row_, chunk_))),
        full_rows_(a.k.bytes == Tile::chunks * 16 && a.v.bytes == Tile::chunks * 16) {
    k_ = a.k.data + kv_head * a.k.head_stride + row_ * a.k.row_stride + 16 * chunk_;
    v_ = a.v.data + kv_head * a.v.head_stride + row_ * a.v.row_stride + 16 * chunk_;
  }

  // Looks the tile at `begin` up in the block table, one tile before its loads: the latency
  // overlaps.
  void find(std::int32_t begin) { tile_row_ = finder_.find(begin); }
  // Issues the loads of that tile; `limit` is the number of keys.
  void load(const ClusterArguments& a, std::int32_t begin, std::int32_t limit,
            SharedAddress stage) const {
    const std::int32_t left = limit - begin;
    if (a.contiguous_tiles && left >= keys && full_rows_) {
      copy_contiguous(k_ + tile_row_.page * a.k.batch_stride + tile_row_.row * a.k.row_stride,
                      step * a.k.row_stride, stage);
      copy_contiguous(v_ + tile_row_.page * a.v.batch_stride + tile_row_.row * a.v.row_stride,
                      step * a.v.row_stride, stage + Types::tile_bytes);
    } else {
      copy_paged(a.k, k_, begin, left, stage);
      copy_paged(a.v, v_, begin, left, stage + Types::tile_bytes);
    }
  }

 private:
  void copy_contiguous(const std::byte* from, std::int64_t stride, SharedAddress tile) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const SharedAddress to = Tile::down(tile + to_, n * step);
      if constexpr (evict_first) {
        arch::cp_async_evict_first(to, from);
      } else {
        arch::cp_async(to, from);
      }
      from += stride;
    }
  }
  // Row by row, with zeros out of bounds. Not unrolled: a rare path should not take instruction
  // cache.
  void copy_paged(const ByteStridedRows& rows, const std::byte* first, std::int32_t begin,
                  std::int32_t left, SharedAddress tile) const {
#pragma unroll 1
    for (int n = 0; n < rounds; ++n) {
      const int row = row_ + n * step;
      const bool in_bounds = row < left && 16 * chunk_ < rows.bytes;
      const CacheRow found = finder_.find(begin + (row < left ? row : 0));
      const std::byte* from = first + found.page * rows.batch_stride +
                              (std::int64_t{found.row} - row_) * rows.row_stride;
      arch::cp_async(Tile::down(tile + to_, n * step), in_bounds ? from : rows.data, in_bounds);
    }
  }

  CacheRowFinder finder_;
  CacheRow tile_row_ = {};
  int row_, chunk_;  // of the lane
  std::uint32_t to_;
  bool full_rows_;
  const std::byte *k_, *v_;  // in row 0 of page 0
};

// Epilogue of a warp: normalized f32 rows and their LSE, to shared memory.
template <KernelSpec spec>
void store_warp_results(const ClusterArguments& a, const ClusterWorkTile& item,
                        const StridedTiles& tiles, std::int32_t sk,
                        const OnlineSoftmax (&softmax)[ClusterTypes<spec>::lane_queries],
                        const typename ClusterTypes<spec>::Outputs& out) {
  using Types = ClusterTypes<spec>;
  using Outputs = typename Types::Outputs;
  constexpr int lane_queries = Types::lane_queries;
  const int lane = arch::lane();
  const SharedAddress results = Types::results(arch::wave());
  arch::syncwarp();  // no lane reads the tiles any more
  NonFiniteRows non_finite;
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    const Normalizer normalizer =
        normalize(softmax[i].row_max, row_sum(softmax[i].sum), false, 0.0f);
    const float factor =
        shifts_exponents(softmax[i].row_max) ? __builtin_nanf("") : normalizer.factor;
    const int row = Outputs::row(lane, i);
    const SharedAddress to = results + static_cast<std::uint32_t>(row * Types::result_bytes +
                                                                  4 * Outputs::lane_column(lane));
    if (lane % row_lanes == 0)
      store_float(results + static_cast<std::uint32_t>(Types::result_lse + 4 * row),
                  normalizer.lse);
    float probe = factor * 0.0f;  // NaN once an output is not finite
    ROCFLASH_UNROLL
    for (int n = 0; n < Outputs::lane_columns; n += 2) {
      const Float2 x{out.at(i, n), out.at(i, n + 1)};
      probe = __builtin_fmaf(x.y, 0.0f, __builtin_fmaf(x.x, 0.0f, probe));
      arch::store_shared(to + static_cast<std::uint32_t>(4 * Outputs::column(n)),
                         __builtin_bit_cast(Words2, x * factor));
    }
    non_finite.add(i, row < item.rows && probe != 0);
  }
  arch::syncwarp();
  while (non_finite.any()) {
    const auto taken = non_finite.take();
    const int row = Outputs::row(taken.first_lane, taken.which);
    const SharedAddress to = results + static_cast<std::uint32_t>(row * Types::result_bytes);
    recompute_strided_row<spec.dtype>(
        a, item, tiles, row, sk, 0, a.problem.value_dim,
        [&](SplitLse x) {
          store_float(results + static_cast<std::uint32_t>(Types::result_lse + 4 * row), x.lse);
        },
        [&](int column, float x) { store_float(to + static_cast<std::uint32_t>(4 * column), x); });
  }
}

// Attention of a block of packed rows over the keys of each warp. The results are in shared memory.
template <KernelSpec spec>
void attend_to_tiles(const ClusterArguments& a, const ClusterWorkTile& item) {
  using Types = ClusterTypes<spec>;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;
  constexpr int lane_queries = Types::lane_queries, prefetched = tile.stages - 1;

  // Prologue: loads of the first tiles, before the number of keys in use is known.
  const int lane = arch::lane();
  const StridedTiles tiles{(item.rank * Types::waves + arch::wave()) * tile.keys,
                           a.cluster * Types::waves * tile.keys, tile.keys};
  KvLoader<spec> loader(a, item.batch, item.kv_head);
  arch::grid_dependency_wait();
#pragma unroll 1
  for (int n = 0; n < prefetched; ++n) {
    const std::int32_t begin = tiles.first + n * tiles.step;
    if (begin < a.keys) {
      loader.find(begin);
      loader.load(a, begin, a.keys, Types::stage(n));
    }
    arch::cp_async_commit();
  }
  arch::launch_dependents();
  const std::int32_t sk = item.keys(a);
  const ClusterQueries<spec.dtype, spec.bucket> q(a, item);
  std::int32_t end[lane_queries], unmasked_end = item.end_of(a, 0, sk);
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) end[i] = item.end_of(a, Scores::row(lane, i), sk);
  loader.find(tiles.first + prefetched * tiles.step);

  OnlineSoftmax softmax[lane_queries];
  typename Types::Outputs out = {};
  int stage = 0, free_stage = prefetched;
  for (std::int32_t begin = tiles.first; begin < sk; begin += tiles.step) {
    arch::cp_async_wait<prefetched - 1>();
    arch::syncwarp();  // the tile has arrived, and no lane reads the previous one
    if (const std::int32_t next = begin + prefetched * tiles.step; next < sk) {
      loader.load(a, next, sk, Types::stage(free_stage));
      loader.find(next + tiles.step);
    }
    arch::cp_async_commit();
    free_stage = stage;
    const SharedAddress k = Types::stage(stage), v = k + Types::tile_bytes;
    stage = stage + 1 == tile.stages ? 0 : stage + 1;
    if (begin + tile.keys > sk) clear_rows<typename Types::Rows>(v, sk - begin, tile.keys);

    // S = Q·Kᵀ
    Scores scores = {};
    add_product<spec.bucket>(scores, q,
                             typename Types::KeyOperand{
                                 operand_address<typename Types::Rows>(k, matrices_across(lane))});
    if (begin + tile.keys > unmasked_end) {
      for_each<lane_queries>([&](int i) {
        ROCFLASH_UNROLL
        for (int n = 0; n < Scores::lane_columns; ++n)
          scores.at(i, n) = begin + Scores::lane_column(lane) + Scores::column(n) < end[i]
                                ? scores.at(i, n)
                                : -infinity;
      });
    }
    update_row_max<Types>(softmax, scores, a.scale_log2, out);

    // O += P·V
    exp2_and_row_sum<Types, false>(
        softmax, scores, a.scale_log2,
        typename Types::ValueOperand{operand_address<typename Types::Rows>(v, matrices_down(lane))},
        out, lane, [](int, int) { return 0u; });
  }
  arch::cp_async_wait<0>();  // also for prefetched tiles past the end
  store_warp_results<spec>(a, item, tiles, sk, softmax, out);
}

template <KernelSpec spec>
void decode_cluster(const ClusterArguments& a) {
  using Types = ClusterTypes<spec>;
  const ClusterWorkTile item(a, Types::tile.rows);
  attend_to_tiles<spec>(a, item);
  combine_results<Types, true>(
      a, item, [&](std::int32_t query, std::int32_t head, int column, Float4 value, float lse) {
        store_result<spec.dtype>(a, item.batch, query, head, column, value, lse);
      });
}

}  // namespace rocflash::kernel
