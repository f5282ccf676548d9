// The parts of decode without options (decode/sm90.hpp by clusters of workgroups, decode/sm90_long.hpp without): which rows
// and keys a workgroup has, where rows of the cache lie, how a row is computed again, and how results are merged.
#pragma once

#include "attention/broken_rows.hpp"
#include "attention/numbers.hpp"
#include "forward/sm80.hpp"
#include "table/decode.hpp"

namespace rocflash::kernel {

// Rows of a tile in shared memory, some bytes apart, so that eight rows' chunks of one column lie in different banks.
template <int row_bytes>
struct SpacedRows {
  static constexpr int chunks = row_bytes / 16, bytes = row_bytes + row_gap;
  static_assert(bytes / 16 % 2 == 1);  // eight rows, eight places of a line

  static int offset(int row, int chunk) { return row * bytes + 16 * chunk; }
  static SharedAddress along(SharedAddress at, int distance) {
    return at + static_cast<std::uint32_t>(16 * distance);
  }
  // From a row to that so many rows below it, where the first is less than their number.
  static SharedAddress down(SharedAddress at, int rows) {
    return at + static_cast<std::uint32_t>(rows * bytes);
  }
};
// The same in the same lines as in memory: copies that cross lines of 128 bytes take more requests, which costs 5 % of the
// pace where memory is all that counts.
template <int row_bytes>
struct AlignedRows : SharedRows<row_bytes> {
  using Tile = SharedRows<row_bytes>;
  static_assert(Tile::swapped == 7);
  static SharedAddress down(SharedAddress at, int rows) {
    return (at ^ static_cast<std::uint32_t>(rows % 8 * 16)) +
           static_cast<std::uint32_t>(rows * Tile::bytes);
  }
};

inline void store_float(SharedAddress to, float x) {
  arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
}

// Rows from `first` on become 0: a weight of 0 times what lies there may be NaN.
template <class Rows>
void clear_rows(SharedAddress tile, int first, int rows) {
#pragma unroll 1
  for (int n = arch::lane(); n < (rows - first) * Rows::chunks; n += arch::wave_size)
    arch::store_shared(
        tile + static_cast<std::uint32_t>(Rows::offset(first + n / Rows::chunks, n % Rows::chunks)),
        Words4{});
  arch::wave_barrier();
}

// What a workgroup computes: a block of rows, pairs of query and head (attention/packed.hpp), over its share of the
// keys.
struct ClusterItem {
  std::int32_t batch, kv_head, rank, row_begin = 0, rows;

  ClusterItem(const ClusterArguments& a, int tile_rows)
      : batch(arch::group_z()), kv_head(arch::group_y()), rank(arch::group()) {
    if (a.row_blocks > 1) {
      row_begin = rank / a.cluster * tile_rows;
      rank &= a.cluster - 1;
    }
    take_rows(a, tile_rows);
  }
  // By numbers that the caller knows, without a cluster.
  ClusterItem(const ClusterArguments& a, int tile_rows, std::int32_t b, std::int32_t h,
              std::int32_t part, std::int32_t block)
      : batch(b), kv_head(h), rank(part), row_begin(block * tile_rows) {
    take_rows(a, tile_rows);
  }

  std::int32_t keys(const ClusterArguments& a) const {
    if (!a.used_k) return a.keys;
    const std::int32_t used = arch::load(a.used_k + batch);
    return used < 0 ? 0 : used < a.keys ? used : a.keys;
  }
  // The query of a row of the block; division takes as long as many other instructions.
  std::int32_t query_of(const ClusterArguments& a, int row) const {
    if (a.queries == 1) return 0;
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(row_begin + row) /
                                     static_cast<std::uint32_t>(a.group));
  }
  std::int32_t head_of(const ClusterArguments& a, int row, std::int32_t query) const {
    return kv_head * a.group + row_begin + row - query * a.group;
  }
  // Behind the last key that a row sees. (Rows that are not in use see what others do.)
  std::int32_t end_of(const ClusterArguments& a, int row, std::int32_t sk) const {
    if (a.hidden == 0) return sk;
    const std::int32_t hidden = a.hidden - query_of(a, row);
    return hidden <= 0 ? sk : hidden < sk ? sk - hidden : 0;
  }

 private:
  void take_rows(const ClusterArguments& a, int tile_rows) {
    const std::int32_t left = a.queries * a.group - row_begin;
    rows = left < tile_rows ? left : tile_rows;
  }
};

// Where a row of the cache lies.
struct RowPlace {
  std::int64_t page;
  std::uint32_t row;
};
class RowFinder {
 public:
  RowFinder(const ClusterArguments& a, std::int32_t batch) : a_(a), batch_(batch) {
    if (a.blocks) table_ = a.blocks + batch * a.blocks_stride;
  }
  // Keys past the last one are taken for that.
  RowPlace find(std::int32_t key) const {
    if (!a_.blocks) return {batch_, static_cast<std::uint32_t>(key)};
    const auto row = static_cast<std::uint32_t>(key < a_.keys ? key : a_.keys - 1);
    const std::uint32_t page = a_.page_shift >= 0 ? row >> a_.page_shift : row / a_.page_rows;
    const std::int32_t named = arch::load(table_ + page);
    return {named < 0 ? 0 : named < a_.caches ? named : a_.caches - 1, row - page * a_.page_rows};
  }

 private:
  const ClusterArguments& a_;
  const std::int32_t* table_ = nullptr;
  std::int32_t batch_;
};

// The keys of one warp, or of one workgroup: tiles by turns.
struct OwnTiles {
  std::int32_t first, step, keys;  // the first key, from tile to tile, of a tile

  std::int32_t key(std::int32_t n) const { return first + n / keys * step + n % keys; }
  // How many of them lie before `end`.
  std::int32_t before(std::int32_t end) const {
    if (end <= first) return 0;
    const std::int32_t whole = (end - first) / step, rest = end - first - whole * step;
    return whole * keys + (rest < keys ? rest : keys);
  }
};

// The scores of those keys, counted from 0.
template <DType dtype>
struct OwnScores : ExactScores<dtype> {
  using All = ExactScores<dtype>;
  OwnTiles tiles;

  float score(const QueryView& query, std::int32_t n) const {
    return All::score(query, tiles.key(n));
  }
  const std::byte* row_of(const Rows& rows, std::int32_t n) const {
    return All::row_of(rows, tiles.key(n));
  }
};

// Computes a row of the block again (repair), over the keys of one warp.
template <DType dtype, class StoreLse, class Store>
void repair_own(const ClusterArguments& a, const ClusterItem& item, const OwnTiles& tiles, int row,
                std::int32_t sk, const RowNormal& normal, int begin, int end, StoreLse store_lse,
                Store store) {
  const Problem& p = a.problem;
  const SequenceView sequence(p, item.batch);
  QueryView view;
  view.index = item.query_of(a, row);
  view.end = tiles.before(item.end_of(a, row, sk));
  repair(OwnScores<dtype>{{p, sequence, item.head_of(a, row, view.index), a.caches}, tiles}, view,
         normal.base, normal.factor, begin, end, store_lse, store);
}

// q of a block of rows as left operands, straight from memory: columns from `begin` on, and zeros for rows that do
// not exist.
template <DType dtype, int depth>
class ClusterQueries {
  using Mma = arch::Mma<dtype>;
  using Tile = WarpTile<Mma, Mma::rows, Mma::columns>;
  static constexpr int steps = depth / Mma::depth;

 public:
  ClusterQueries(const ClusterArguments& a, const ClusterItem& item) {
    const int lane = arch::lane();
    const bool whole = a.q.bytes == depth * number_bytes<dtype>;
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
        if (whole || 16 * n < a.q.bytes)
          fragment_[n / 2][n % 2 * 2 + i] =
              arch::load(reinterpret_cast<const std::uint32_t*>(from + 16 * n));
    }
  }
  Words4 fragment(int, int step) const { return fragment_[step]; }

 private:
  Words4 fragment_[steps];
};

// Four columns of a row of the outputs, and its lse.
template <DType dtype>
void store_result(const ClusterArguments& a, std::int32_t batch, std::int32_t query,
                  std::int32_t head, int column, Float4 value, float total) {
  std::byte* out = row_address<dtype>(a.outputs.out, batch, query, head) + 2 * column;
  if (a.quads && column + 4 <= a.outputs.out.columns) {
    arch::store(reinterpret_cast<Words2*>(out), Words2{arch::narrow_two<dtype>(value.x, value.y),
                                                       arch::narrow_two<dtype>(value.z, value.w)});
  } else {
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e)
      if (column + e < a.outputs.out.columns)
        arch::store(reinterpret_cast<std::uint16_t*>(out) + e, narrow<dtype>(value[e]));
  }
  if (a.outputs.lse && column == 0) arch::store(&a.outputs.lse.at(batch, head, query), total);
}

// The results of all warps of a cluster, or of a workgroup alone, in one: weighted by their shares of the sum, as
// combine/rows.hpp does. Each thread takes four columns of a row from one workgroup, and as many lanes as there are
// workgroups add up what they have. store(query, head, column, values, lse) gets them.
template <class Types, bool of_cluster, class Store>
void merge_results(const ClusterArguments& a, const ClusterItem& item, Store store) {
  constexpr int row_chunks = Types::bucket / 4, threads = Types::tile.threads;
  const int size = of_cluster ? a.cluster : 1, rank = of_cluster ? item.rank : 0,
            shift = __builtin_ctz(static_cast<unsigned>(size)), thread = arch::thread(),
            source = thread & (size - 1);
  const SharedAddress results =
      size > 1 ? arch::address_in(source, Types::results()) : Types::results();
  if (size > 1) {
    arch::reach_cluster_barrier();
    arch::pass_cluster_barrier();
  } else {
    arch::barrier();
  }
  for (int first = 0; first < item.rows * row_chunks; first += threads) {
    const int n = first + ((thread + rank * threads) >> shift), row = n / row_chunks,
              column = n % row_chunks * 4;
    const bool there = row < item.rows;
    const SharedAddress from =
        results + (there ? static_cast<std::uint32_t>(row * Types::result_bytes + 4 * column) : 0u);
    const SharedAddress from_lse =
        results + static_cast<std::uint32_t>(Types::result_lse + (there ? 4 * row : 0));
    float lse[Types::waves], highest = -infinity, sum = 0;
    Float4 x[Types::waves], value = {};
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w) {
      lse[w] =
          arch::load_cluster_float(from_lse + static_cast<std::uint32_t>(w * Types::warp_bytes));
      x[w] = arch::load_cluster_floats(from + static_cast<std::uint32_t>(w * Types::warp_bytes));
    }
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w)
      if (lse[w] != infinity) highest = __builtin_fmaxf(highest, lse[w]);
    for (int bits = 1; bits < size; bits *= 2)
      highest = __builtin_fmaxf(highest, arch::from_lane_xor(highest, bits));
    const std::int32_t query = item.query_of(a, row), head = item.head_of(a, row, query);
    const bool has_sink = a.sinks && there;
    const float sink =
        has_sink ? number_at(a.sinks.data, a.sinks.dtype, head * a.sinks.head_stride) : -infinity;
    highest = __builtin_fmaxf(highest, sink);
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w) {
      if (lse[w] == infinity) continue;  // it saw no key, and left no values
      const float share = arch::exp2((lse[w] - highest) * log2_e);
      sum += share;
      if (share != 0) value += share * x[w];
    }
    for (int bits = 1; bits < size; bits *= 2) {
      sum += arch::from_lane_xor(sum, bits);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) value[e] += arch::from_lane_xor(value[e], bits);
    }
    if (source != 0 || !there) continue;
    if (has_sink && sink != -infinity) sum += arch::exp2((sink - highest) * log2_e);
    value = sum == 0 ? Float4{} : value * (1 / sum);
    if (sum != sum) value = sum;  // NaN, even without any values
    const float total = sum == 0 ? infinity : highest + arch::log2(sum) * ln_2;
    store(query, head, column, value, total);
  }
  if (size > 1) {  // others may still read this one's results
    arch::reach_cluster_barrier();
    arch::pass_cluster_barrier();
  }
}

}  // namespace rocflash::kernel
