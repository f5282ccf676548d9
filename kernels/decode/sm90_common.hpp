// Shared by the specialized decode kernels of Hopper (decode/sm90_cluster.hpp with clusters and
// DSMEM, decode/sm90_splitkv.hpp without): work tiles, rows of the KV cache, recomputation of
// non-finite rows, combine.
#pragma once

#include "attention/elements.hpp"
#include "attention/non_finite_rows.hpp"
#include "forward/sm80.hpp"
#include "table/decode.hpp"

namespace rocflash::kernel {

// Rows of a tile in shared memory with padding, so that eight rows' chunks of one column are in
// different banks.
template <int row_bytes>
struct PaddedRows {
  static constexpr int chunks = row_bytes / 16, bytes = row_bytes + row_gap;
  static_assert(bytes / 16 % 2 == 1);  // eight rows, eight different banks

  static int offset(int row, int chunk) { return row * bytes + 16 * chunk; }
  static SharedAddress along(SharedAddress at, int distance) {
    return at + static_cast<std::uint32_t>(16 * distance);
  }
  // `rows` rows further down; the first row is less than `rows`.
  static SharedAddress down(SharedAddress at, int rows) {
    return at + static_cast<std::uint32_t>(rows * bytes);
  }
};
// The same with a swizzle instead of padding. cp.async writes that cross 128-byte lines take more
// requests: padding costs 5 % of the bandwidth of split-KV decode.
template <int row_bytes>
struct SwizzledRows : SharedRows<row_bytes> {
  using Tile = SharedRows<row_bytes>;
  static_assert(Tile::xor_mask == 7);
  static SharedAddress down(SharedAddress at, int rows) {
    return (at ^ static_cast<std::uint32_t>(rows % 8 * 16)) +
           static_cast<std::uint32_t>(rows * Tile::bytes);
  }
};

inline void store_float(SharedAddress to, float x) {
  arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
}

// Zeroes rows from `first` on: their P is 0, but 0 times NaN is NaN.
template <class Rows>
void clear_rows(SharedAddress tile, int first, int rows) {
#pragma unroll 1
  for (int n = arch::lane(); n < (rows - first) * Rows::chunks; n += arch::wave_size)
    arch::store_shared(
        tile + static_cast<std::uint32_t>(Rows::offset(first + n / Rows::chunks, n % Rows::chunks)),
        Words4{});
  arch::syncwarp();
}

// Work tile: a block of packed (query, head) rows (attention/gqa_packing.hpp) over a split of the
// keys, whose index is the rank in the cluster.
struct ClusterWorkTile {
  std::int32_t batch, kv_head, rank, row_begin = 0, rows;

  ClusterWorkTile(const ClusterArguments& a, int tile_rows)
      : batch(arch::workgroup_id_z()), kv_head(arch::workgroup_id_y()), rank(arch::workgroup_id()) {
    if (a.row_blocks > 1) {
      row_begin = rank / a.cluster * tile_rows;
      rank &= a.cluster - 1;
    }
    take_rows(a, tile_rows);
  }
  // Without a cluster.
  ClusterWorkTile(const ClusterArguments& a, int tile_rows, std::int32_t b, std::int32_t h,
                  std::int32_t split, std::int32_t block)
      : batch(b), kv_head(h), rank(split), row_begin(block * tile_rows) {
    take_rows(a, tile_rows);
  }

  std::int32_t keys(const ClusterArguments& a) const {
    if (!a.used_k) return a.keys;
    const std::int32_t used = arch::load(a.used_k + batch);
    return used < 0 ? 0 : used < a.keys ? used : a.keys;
  }
  // The query of a packed row; one query needs no division.
  std::int32_t query_of(const ClusterArguments& a, int row) const {
    if (a.queries == 1) return 0;
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(row_begin + row) /
                                     static_cast<std::uint32_t>(a.gqa_group));
  }
  std::int32_t head_of(const ClusterArguments& a, int row, std::int32_t query) const {
    return kv_head * a.gqa_group + row_begin + row - query * a.gqa_group;
  }
  // End of the keys that a row attends to. Rows past the last one are computed, but not stored.
  std::int32_t end_of(const ClusterArguments& a, int row, std::int32_t sk) const {
    if (a.masked_tail == 0) return sk;
    const std::int32_t masked = a.masked_tail - query_of(a, row);
    return masked <= 0 ? sk : masked < sk ? sk - masked : 0;
  }

 private:
  void take_rows(const ClusterArguments& a, int tile_rows) {
    const std::int32_t left = a.queries * a.gqa_group - row_begin;
    rows = left < tile_rows ? left : tile_rows;
  }
};

// Position of a row in the KV cache.
struct CacheRow {
  std::int64_t page;
  std::uint32_t row;
};
class CacheRowFinder {
 public:
  CacheRowFinder(const ClusterArguments& a, std::int32_t batch) : a_(a), batch_(batch) {
    if (a.blocks) table_ = a.blocks + batch * a.blocks_stride;
  }
  // Keys out of bounds are clamped to the last one.
  CacheRow find(std::int32_t key) const {
    if (!a_.blocks) return {batch_, static_cast<std::uint32_t>(key)};
    const auto row = static_cast<std::uint32_t>(key < a_.keys ? key : a_.keys - 1);
    const std::uint32_t page = a_.page_shift >= 0 ? row >> a_.page_shift : row / a_.page_rows;
    const std::int32_t block = arch::load(table_ + page);
    return {block < 0 ? 0 : block < a_.caches ? block : a_.caches - 1, row - page * a_.page_rows};
  }

 private:
  const ClusterArguments& a_;
  const std::int32_t* table_ = nullptr;
  std::int32_t batch_;
};

// The keys of one warp: every n-th tile (round-robin over the warps).
struct StridedTiles {
  std::int32_t first;  // key of the first tile
  std::int32_t step;   // keys from one tile to the next
  std::int32_t keys;   // per tile

  std::int32_t key(std::int32_t n) const { return first + n / keys * step + n % keys; }
  // Number of these keys before `end`.
  std::int32_t before(std::int32_t end) const {
    if (end <= first) return 0;
    const std::int32_t whole = (end - first) / step, rest = end - first - whole * step;
    return whole * keys + (rest < keys ? rest : keys);
  }
};

// Exact scores of those keys, counted from 0.
template <DType dtype>
struct StridedScores : ExactScores<dtype> {
  using All = ExactScores<dtype>;
  StridedTiles tiles;

  float score(const QueryView& query, std::int32_t n) const {
    return All::score(query, tiles.key(n));
  }
  const std::byte* row_of(const Rows& rows, std::int32_t n) const {
    return All::row_of(rows, tiles.key(n));
  }
};

// Recomputes a non-finite row over the keys of one warp.
template <DType dtype, class StoreLse, class Store>
void recompute_strided_row(const ClusterArguments& a, const ClusterWorkTile& item,
                           const StridedTiles& tiles, int row, std::int32_t sk, int begin, int end,
                           StoreLse store_lse, Store store) {
  const Problem& p = a.problem;
  const SequenceView sequence(p, item.batch);
  QueryView view;
  view.index = item.query_of(a, row);
  view.end = tiles.before(item.end_of(a, row, sk));
  recompute_row(
      StridedScores<dtype>{{p, sequence, item.head_of(a, row, view.index), a.caches}, tiles}, view,
      begin, end, store_lse, store);
}

// Q of a block of packed rows as left operands, loaded from global memory into fragments. Rows out
// of bounds are 0.
template <DType dtype, int depth>
class ClusterQueries {
  using Mma = arch::Mma<dtype>;
  using Tile = WarpTile<Mma, Mma::rows, Mma::columns>;
  static constexpr int steps = depth / Mma::depth;

 public:
  ClusterQueries(const ClusterArguments& a, const ClusterWorkTile& item) {
    const int lane = arch::lane();
    const bool all_columns = a.q.bytes == depth * element_bytes<dtype>;
    ROCFLASH_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = Tile::row(lane, i);
      ROCFLASH_UNROLL
      for (int n = 0; n < 2 * steps; ++n) fragment_[n / 2][n % 2 * 2 + i] = 0;
      if (row >= item.rows) continue;
      const std::int32_t query = item.query_of(a, row);
      const std::byte* from = a.q.data + item.batch * a.q.batch_stride + query * a.q.row_stride +
                              item.head_of(a, row, query) * a.q.head_stride +
                              4 * (lane % row_lanes);
      ROCFLASH_UNROLL
      for (int n = 0; n < 2 * steps; ++n)
        if (all_columns || 16 * n < a.q.bytes)
          fragment_[n / 2][n % 2 * 2 + i] =
              arch::load(reinterpret_cast<const std::uint32_t*>(from + 16 * n));
    }
  }
  Words4 fragment(int, int step) const { return fragment_[step]; }

 private:
  Words4 fragment_[steps];
};

// Stores four columns of a row of O, and its LSE.
template <DType dtype>
void store_result(const ClusterArguments& a, std::int32_t batch, std::int32_t query,
                  std::int32_t head, int column, Float4 value, float lse) {
  std::byte* out = row_address<dtype>(a.outputs.out, batch, query, head) + 2 * column;
  if (a.quads && column + 4 <= a.outputs.out.columns) {
    arch::store(reinterpret_cast<Words2*>(out), Words2{arch::cvt_pack<dtype>(value.x, value.y),
                                                       arch::cvt_pack<dtype>(value.z, value.w)});
  } else {
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e)
      if (column + e < a.outputs.out.columns)
        arch::store(reinterpret_cast<std::uint16_t*>(out) + e, narrow<dtype>(value[e]));
  }
  if (a.outputs.lse && column == 0) arch::store(&a.outputs.lse.at(batch, head, query), lse);
}

// Combines the results of all warps of a cluster (through DSMEM) or of one workgroup, weighted with
// exp(LSE − max LSE) as in combine/rows.hpp. Each thread reads four columns of a row from one
// workgroup, and one lane per workgroup takes part in the shuffle reduction. The result goes to
// store(query, head, column, values, lse).
template <class Types, bool of_cluster, class Store>
void combine_results(const ClusterArguments& a, const ClusterWorkTile& item, Store store) {
  constexpr int row_chunks = Types::bucket / 4, threads = Types::tile.threads;
  const int size = of_cluster ? a.cluster : 1, rank = of_cluster ? item.rank : 0,
            shift = __builtin_ctz(static_cast<unsigned>(size)), thread = arch::thread(),
            source = thread & (size - 1);
  const SharedAddress results = size > 1 ? arch::mapa(source, Types::results()) : Types::results();
  if (size > 1) {
    arch::cluster_arrive();
    arch::cluster_wait();
  } else {
    arch::barrier();
  }
  for (int first = 0; first < item.rows * row_chunks; first += threads) {
    const int n = first + ((thread + rank * threads) >> shift), row = n / row_chunks,
              column = n % row_chunks * 4;
    const bool in_bounds = row < item.rows;
    const SharedAddress from =
        results +
        (in_bounds ? static_cast<std::uint32_t>(row * Types::result_bytes + 4 * column) : 0u);
    const SharedAddress from_lse =
        results + static_cast<std::uint32_t>(Types::result_lse + (in_bounds ? 4 * row : 0));
    float lse[Types::waves], max_lse = -infinity, sum = 0;
    Float4 x[Types::waves], value = {};
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w) {
      lse[w] = arch::load_dsmem_float(from_lse + static_cast<std::uint32_t>(w * Types::warp_bytes));
      x[w] = arch::load_dsmem_floats(from + static_cast<std::uint32_t>(w * Types::warp_bytes));
    }
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w)
      if (lse[w] != infinity) max_lse = __builtin_fmaxf(max_lse, lse[w]);
    for (int bits = 1; bits < size; bits *= 2)
      max_lse = __builtin_fmaxf(max_lse, arch::shfl_xor(max_lse, bits));
    const std::int32_t query = item.query_of(a, row), head = item.head_of(a, row, query);
    const bool has_sink = a.sinks && in_bounds;
    const float sink = has_sink
                           ? load_element(a.sinks.data, a.sinks.dtype, head * a.sinks.head_stride)
                           : -infinity;
    max_lse = __builtin_fmaxf(max_lse, sink);
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w) {
      if (lse[w] == infinity) continue;  // fully masked: no values were stored
      const float weight = arch::exp2((lse[w] - max_lse) * log2_e);
      sum += weight;
      if (weight != 0) value += weight * x[w];
    }
    for (int bits = 1; bits < size; bits *= 2) {
      sum += arch::shfl_xor(sum, bits);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) value[e] += arch::shfl_xor(value[e], bits);
    }
    if (source != 0 || !in_bounds) continue;
    if (has_sink && sink != -infinity) sum += arch::exp2((sink - max_lse) * log2_e);
    value = sum == 0 ? Float4{} : value * (1 / sum);
    if (sum != sum) value = sum;  // NaN, even without any values
    const float combined_lse = sum == 0 ? infinity : max_lse + arch::log2(sum) * ln_2;
    store(query, head, column, value, combined_lse);
  }
  if (size > 1) {  // other workgroups may still read these results
    arch::cluster_arrive();
    arch::cluster_wait();
  }
}

}  // namespace rocflash::kernel
