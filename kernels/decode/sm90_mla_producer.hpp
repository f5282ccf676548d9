// MLA decode on Hopper (decode/sm90_mla.hpp): shared memory layout, producer warpgroup, Q loads,
// and the stores of the results.
#pragma once

#include "attention/exact_recompute.hpp"
#include "attention/online_softmax.hpp"
#include "attention/store_columns.hpp"
#include "decode/mla.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

inline constexpr int warpgroup_warps = arch::warpgroup_size / arch::wave_size;

// Types and shared memory layout of one kernel.
template <KernelSpec spec>
struct MlaWarpSpecializedTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int rows = spec.bucket;
  static constexpr MlaWarpgroups warpgroups{rows};
  static constexpr int stages = MlaWarpgroups::stages, weight_stages = warpgroups.weight_stages();
  static constexpr int keys = MlaWarpgroups::keys, half = mla_values / 2;

  // Column blocks with a pipeline each: quarters of V, then the RoPE columns.
  static constexpr int value_blocks = 4, block_columns = mla_values / value_blocks,
                       own_blocks = value_blocks / 2;
  using KeyHalf = TmaTile<keys, half>;
  using KeyBlock = TmaTile<keys, block_columns>;
  using KeyRest = TmaTile<keys, mla_rest>;
  using QueryBlock = TmaTile<rows, block_columns>;
  using QueryRest = TmaTile<rows, mla_rest>;
  using WeightTile = TmaTile<rows, keys>;

  static constexpr int query_bytes = value_blocks * QueryBlock::bytes + QueryRest::bytes,
                       stage_bytes = value_blocks * KeyBlock::bytes + KeyRest::bytes;
  static_assert(query_bytes % 1024 == 0 && stage_bytes % 1024 == 0 &&
                WeightTile::bytes % 1024 == 0);

  static SharedAddress q(int number) {
    return arch::shared_begin() + static_cast<std::uint32_t>(number * QueryBlock::bytes);
  }
  static SharedAddress k(int stage, int number) {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(query_bytes + stage * stage_bytes + number * KeyBlock::bytes);
  }
  static SharedAddress weights(int stage) {
    return k(stages, 0) + static_cast<std::uint32_t>(stage * WeightTile::bytes);
  }
  // Results reuse the storage of K. Rows are padded, so that lanes use different banks: they store
  // one column of every other row (sm90_mla_few_heads.hpp), or two of adjacent rows
  // (sm90_mla_many_heads.hpp).
  static constexpr int result_bytes = 4 * mla_values + (rows < warpgroup_rows ? 16 : 32);
  static SharedAddress result(int row, int column) {
    return k(0, 0) + static_cast<std::uint32_t>(row * result_bytes + 4 * column);
  }
  static_assert(rows * result_bytes <= stages * stage_bytes);
  // Words per row of Q.
  static SharedAddress factor(int stage, int row) {
    return weights(weight_stages) + static_cast<std::uint32_t>(4 * (stage * rows + row));
  }
  static SharedAddress of_warp(int warp, int row) { return factor(weight_stages + warp, row); }
  static SharedAddress mask_bounds(int row) {
    return of_warp(4, 0) + static_cast<std::uint32_t>(8 * row);
  }
  // In the epilogue, in the same storage.
  static SharedAddress lse(int row) { return mask_bounds(row); }
  static SharedAddress end(int row) {
    return mask_bounds(rows) + static_cast<std::uint32_t>(8 * row);
  }  // row max and normalization factor
  // Whether a warp must rescale O.
  static SharedAddress rescaled(int stage, int warp) {
    return end(rows) + static_cast<std::uint32_t>(4 * (stage * warpgroup_warps + warp));
  }
  // Bit masks of non-finite rows of each warp, in the storage of P.
  static SharedAddress non_finite(int warp) {
    return weights(0) + static_cast<std::uint32_t>(8 * warp);
  }
  static SharedAddress barriers() { return rescaled(2, 0); }
  static Pipeline<stages> k_pipeline(int number) {
    return Pipeline<stages>(barriers() +
                            static_cast<std::uint32_t>(number * Pipeline<stages>::bytes));
  }
  static Pipeline<weight_stages> weight_pipeline() {
    return Pipeline<weight_stages>(barriers() + (value_blocks + 1) * Pipeline<stages>::bytes);
  }
  // Storage of MlaResultRows.
  static SharedAddress kept() {
    return barriers() + (value_blocks + 1) * Pipeline<stages>::bytes +
           Pipeline<weight_stages>::bytes;
  }
  static constexpr int kept_bytes = 32;
  static_assert(32 + (value_blocks + 1) * Pipeline<stages>::bytes + Pipeline<weight_stages>::bytes +
                    kept_bytes <=
                256);
  static_assert(warpgroups.dynamic_shared() <= 232448);
};

// An address that the compiler knows to be uniform, so that it stays in uniform registers for
// WGMMA.
inline SharedAddress uniform_address(SharedAddress at) {
  return static_cast<SharedAddress>(
      __nvvm_shfl_sync_idx_i32(arch::all_lanes, static_cast<int>(at), 0, 31));
}

// S of one column block as one WGMMA batch; the first batch of a tile is `fresh`.
template <DType dtype, int depth, bool fresh, class Scores, class Left, class Right>
void add_scores(Scores& scores ROCFLASH_ASYNC_BEGIN, const Left& left, const Right& right) {
  WgmmaBatch products;
  if constexpr (fresh) products.template multiply<dtype, depth>(scores, left, right);
  if constexpr (!fresh) products.template add<dtype, depth>(scores, left, right);
  products.commit();
  assume_in_flight(scores);
}

// Named barriers.
inline constexpr arch::NamedBarrier mla_scores_barrier{1}, mla_start_barrier{2},
    mla_values_barrier{3}, mla_keys_barrier{4};

// Two workgroups with adjacent splits may form a cluster: they combine their results through DSMEM,
// which halves the partial results in global memory.
struct MlaCluster {
  static bool exists() { return arch::cluster_size() > 1; }
  static int rank() { return arch::cluster_rank(); }
  // Called twice by all threads of both workgroups: results are stored, results have been read.
  static void sync() {
    arch::cluster_arrive();
    arch::cluster_wait();
  }
  static void arrive_and_exit() {
    if (!exists()) return;
    sync();
    arch::cluster_arrive();
  }
};

// Work tile of a workgroup.
template <KernelSpec spec>
struct MlaWork {
  DecodeWorkTile item;
  SequenceView sequence;
  KeySplit split;

  explicit MlaWork(const DecodeArguments& a)
      : item(a, number(a, arch::opaque_sgpr(arch::workgroup_id()))),
        sequence(a.problem, item.batch),
        split(a, sequence, item.block, MlaWarpSpecializedTypes<spec>::rows, 0, 1,
              MlaWarpSpecializedTypes<spec>::keys) {
    divide(a.splits);
  }
  // Index of the partial result.
  std::int32_t result() const { return MlaCluster::exists() ? item.split / 2 : item.split; }
  PackedRow row(const DecodeArguments& a, int n) const {
    return PackedRow(split.row_begin + n, static_cast<std::uint32_t>(a.gqa_group), item.kv_head);
  }

 private:
  // Both workgroups of a pair have the same block of rows.
  static std::int32_t number(const DecodeArguments& a, std::int32_t workgroup) {
    if (!MlaCluster::exists()) return workgroup;
    const std::int32_t pair = workgroup / 2;
    return (pair / a.blocks * 2 + workgroup % 2) * a.blocks + pair % a.blocks;
  }
  // The tiles of this split; splits differ by at most one tile.
  void divide(std::int32_t splits) {
    constexpr std::int64_t keys = MlaWarpSpecializedTypes<spec>::keys;
    const auto tiles = static_cast<std::int32_t>((split.end - split.begin + keys - 1) / keys);
    const std::int32_t least = tiles / splits, more = tiles % splits, index = item.split;
    const std::int64_t begin =
        split.begin + (index * std::int64_t{least} + (index < more ? index : more)) * keys;
    const std::int64_t end = begin + (least + (index < more ? 1 : 0)) * keys;
    split.begin = static_cast<std::int32_t>(smaller(begin, split.end));
    split.end = static_cast<std::int32_t>(smaller(end, split.end));
    split.common_end = static_cast<std::int32_t>(smaller(split.common_end, split.end));
  }
};

// Destination of the workgroup's results. Computing it takes 1 us and the main loop has no
// registers for it: the prologue stores it in shared memory for the epilogue.
template <KernelSpec spec>
class MlaResultRows {
  using Types = MlaWarpSpecializedTypes<spec>;

 public:
  static void store(const MlaWork<spec>& work) {
    const auto word = [](auto x) { return static_cast<std::uint32_t>(x); };
    const std::int64_t q_row = work.sequence.q_row;
    arch::store_shared(Types::kept(), Words4{word(work.split.rows), word(work.split.row_begin),
                                             word(work.item.kv_head), word(work.result())});
    arch::store_shared(Types::kept() + 16,
                       Words4{word(q_row), word(q_row >> 32), word(work.item.batch), 0});
  }
  explicit MlaResultRows(const DecodeArguments& a) : a_(a) {
    const Words4 x = arch::load_shared(Types::kept()), y = arch::load_shared(Types::kept() + 16);
    count = static_cast<std::int32_t>(x.x);
    begin_ = static_cast<std::int32_t>(x.y);
    kv_head_ = static_cast<std::int32_t>(x.z);
    split_ = static_cast<std::int32_t>(x.w);
    q_row_ = static_cast<std::int64_t>(std::uint64_t{y.y} << 32 | y.x);
    batch_ = static_cast<std::int32_t>(y.z);
  }

  struct Row {
    std::byte* out;
    float* lse;  // may be null
  };
  Row row(int n) const {
    const PackedRow packed(begin_ + n, static_cast<std::uint32_t>(a_.gqa_group), kv_head_);
    const std::int64_t query = q_row_ + packed.query;
    if (a_.direct)
      return {row_address<spec.dtype>(a_.outputs.out, batch_, query, packed.head),
              a_.outputs.lse ? &a_.outputs.lse.at(batch_, packed.head, query) : nullptr};
    return {row_address(a_.out, DType::f32, batch_, query, packed.head) +
                4 * split_ * a_.out_split_stride,
            &a_.lse.at(batch_, packed.head, query) + split_ * a_.lse_split_stride};
  }
  // Four adjacent columns.
  void store(const Row& to, int column, Float4 x) const {
    if (!a_.direct) return arch::store(reinterpret_cast<Float4*>(to.out + 4 * column), x);
    store_four(to.out, spec.dtype, column, static_cast<int>(a_.outputs.out.columns), x);
  }
  // Without score modifiers an LSE needs no rest (attention/split_lse.hpp).
  void store_lse(const Row& to, float lse) const {
    if (arch::lane() != 0 || !to.lse) return;
    arch::store(to.lse, lse);
    if (!a_.direct) arch::store(to.lse + 1, 0.0f);
  }

  std::int32_t count;

 private:
  const DecodeArguments& a_;
  std::int32_t begin_, kv_head_, split_, batch_;
  std::int64_t q_row_;
};

// Producer warpgroup. The lanes of a warp look up the block table entries of the next TMA boxes,
// one each; lane 0 issues the warp's share of the loads.
template <KernelSpec spec>
void produce_mla_tiles(const MlaWarpSpecializedArguments& a, const SequenceView& sequence,
                       const KeySplit& split, std::int32_t kv_head) {
  using Types = MlaWarpSpecializedTypes<spec>;
  using KeyBlock = typename Types::KeyBlock;
  const Rows& keys = a.decode.problem.k;
  const std::int32_t box_rows = a.box_rows, boxes = Types::keys / box_rows;  // a power of two
  const auto page_rows = static_cast<std::uint32_t>(keys.blocks ? keys.block_rows : 0x7fffffff);
  const std::int32_t lane = arch::lane(), last_box = (split.end - 1) / box_rows;
  const std::int32_t* const table =
      keys.blocks ? keys.blocks + sequence.batch * keys.blocks_stride : nullptr;
  // Start of a box. Boxes past the last key are clamped to the last one.
  struct BoxCoordinates {
    std::int32_t page, row;
  };
  const auto look_up = [&](std::int32_t box) {
    const auto row = static_cast<std::uint32_t>((box < last_box ? box : last_box) * box_rows);
    if (!table)
      return BoxCoordinates{static_cast<std::int32_t>(sequence.batch),
                            static_cast<std::int32_t>(row)};
    return BoxCoordinates{static_cast<std::int32_t>(
                              clamp(arch::load(table + row / page_rows), 0, a.decode.caches - 1)),
                          static_cast<std::int32_t>(row % page_rows)};
  };
  const auto from_lane = [](std::int32_t x, std::int32_t source) {
    return __nvvm_shfl_sync_idx_i32(arch::all_lanes, x, source, 31);
  };
  // Other row blocks read the same keys at the same time.
  const arch::CacheHint reuse =
      a.decode.blocks > 1 ? arch::CacheHint::evict_last : arch::CacheHint::evict_first;
  const int warp = arch::wave(), shift = __builtin_ctz(static_cast<unsigned>(boxes));
  ProducerState<Types::stages> state;
  std::int32_t box = split.begin / box_rows, used = 0;
  BoxCoordinates coordinates = look_up(box + lane),
                 next_coordinates = look_up(box + arch::wave_size + lane);
  arch::barrier_sync(mla_keys_barrier, MlaWarpgroups::threads);
  for (std::int32_t begin = split.begin; begin < split.end; begin += Types::keys) {
    if (used == arch::wave_size) {
      used = 0;
      coordinates = next_coordinates;
      next_coordinates = look_up(box + arch::wave_size + lane);
    }
    // The RoPE columns first: they are released first, and S starts with them.
    ROCFLASH_UNROLL
    for (int n = 0; n <= Types::value_blocks; ++n) {
      const int number = (n + Types::value_blocks) % (Types::value_blocks + 1),
                column_blocks = number == Types::value_blocks ? 1 : KeyBlock::count;
      const int copies = column_blocks * boxes,
                own = (copies - warp + warpgroup_warps - 1) / warpgroup_warps;
      const auto pipeline = Types::k_pipeline(number);
      pipeline.producer_acquire(state);
      arch::syncwarp();
      SharedAddress full = 0;
      if (lane == 0)
        full = pipeline.producer_expect_tx(state, own * box_rows * KeyBlock::row_bytes);
      for (int copy = warp; copy < copies; copy += warpgroup_warps) {
        const int which = copy & (boxes - 1), column_block = copy >> shift;
        const std::int32_t page = from_lane(coordinates.page, used + which),
                           row = from_lane(coordinates.row, used + which);
        if (lane == 0)
          arch::tma_load(
              Types::k(state.stage(), number) +
                  static_cast<std::uint32_t>(column_block * KeyBlock::column_block_bytes +
                                             which * box_rows * KeyBlock::row_bytes),
              a.k, full, number * Types::block_columns + KeyBlock::width * column_block, row,
              kv_head, page, reuse);
      }
    }
    used += boxes;
    box += boxes;
    state.advance();
  }
}

// Q to shared memory as operand of S, with zeros out of bounds. Rows go to warps round-robin. All
// loads are issued before the first one of K: after two tiles of K they took 3 us longer.
template <KernelSpec spec, int warps>
class MlaQueries {
  using Types = MlaWarpSpecializedTypes<spec>;
  using Tile = TmaTile<Types::rows, mla_values + mla_rest>;
  static_assert(Tile::bytes == Types::query_bytes);

 public:
  // Each lane computes the address of one row of its warp: it takes a division.
  MlaQueries(const DecodeArguments& a, const MlaWork<spec>& work, int warp)
      : warp_(warp), rows_(work.split.rows), columns_(static_cast<int>(a.problem.q.columns)) {
    const int own = warp + arch::lane() * warps;
    const PackedRow packed = work.row(a, own < rows_ ? own : 0);
    address_ = reinterpret_cast<std::uint64_t>(row_address<spec.dtype>(
        a.problem.q, work.sequence.batch, work.sequence.q_row + packed.query, packed.head));
  }
  void issue_loads() const {
    ROCFLASH_UNROLL
    for (int n = 0; n < (Types::rows + warps - 1) / warps; ++n) {
      const int row = warp_ + n * warps;
      const auto* const from = reinterpret_cast<const std::byte*>(
          std::uint64_t{word(address_ >> 32, n)} << 32 | word(address_, n));
      if (row >= Types::rows) break;
      ROCFLASH_UNROLL
      for (int first = 0; first < Tile::columns; first += 8 * arch::wave_size) {
        const int column = first + 8 * arch::lane();
        if (column >= Tile::columns) break;
        const bool exists = row < rows_ && column < columns_;
        arch::cp_async(Types::q(0) + static_cast<std::uint32_t>(Tile::offset(row, column)),
                       from + (exists ? element_bytes<spec.dtype> * column : 0), exists);
      }
    }
    arch::cp_async_commit();
    arch::barrier_arrive(mla_keys_barrier, MlaWarpgroups::threads);
  }

 private:
  static std::uint32_t word(std::uint64_t x, int lane) {
    return static_cast<std::uint32_t>(
        __nvvm_shfl_sync_idx_i32(arch::all_lanes, static_cast<int>(x), lane, 31));
  }

  int warp_, rows_, columns_;
  std::uint64_t address_;
};

// Zeroes rows of a tile from `first` on: their P is 0, but 0 times NaN is NaN.
template <class Types>
void clear_mla_rows(int stage, int first, int thread) {
  constexpr int chunks = Types::KeyHalf::row_bytes / 16;
  const int count = (Types::keys - first) * chunks;
  for (int column_block = 0; column_block < 2 * Types::KeyHalf::count; ++column_block)
    for (int n = thread; n < count; n += arch::warpgroup_size)
      arch::store_shared(
          Types::k(stage, 0) +
              static_cast<std::uint32_t>(column_block * Types::KeyHalf::column_block_bytes +
                                         first * Types::KeyBlock::row_bytes + 16 * n),
          Words4{});
}

// Recomputes non-finite rows (attention/exact_recompute.hpp), round-robin over the warps.
template <KernelSpec spec>
void recompute_mla_rows(const DecodeArguments& a, int first, int step, std::uint64_t non_finite) {
  using Types = MlaWarpSpecializedTypes<spec>;
  if (non_finite == 0) return;  // before anything is looked up again
  const auto store = [](SharedAddress to, float x) {
    arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
  };
  const MlaWork<spec> work(arch::reload_kernargs(a));
#pragma clang loop unroll(disable)
  for (int row = first; row < work.split.rows; row += step) {
    if (!(non_finite >> row & 1)) continue;
    const PackedRow packed = work.row(a, row);
    recompute_row(
        ExactScores<spec.dtype>{a.problem, work.sequence, packed.head, a.caches},
        work.split.view(a.problem, work.sequence, packed.query), 0, a.problem.value_dim,
        [&](SplitLse x) { store(Types::lse(row), x.lse); },
        [&](int column, float x) { store(Types::result(row, column), x); });
  }
}

// Result rows from shared memory to global memory, round-robin over the warps.
template <KernelSpec spec>
void store_mla_results(const DecodeArguments& a, int first, int step) {
  using Types = MlaWarpSpecializedTypes<spec>;
  const MlaResultRows<spec> rows(a);
  arch::syncwarp();  // recomputed rows are stored
#pragma clang loop unroll(disable)
  for (int row = first; row < rows.count; row += step) {
    const auto to = rows.row(row);
    for (int column = 4 * arch::lane(); column < mla_values; column += 4 * arch::wave_size)
      rows.store(to, column,
                 __builtin_bit_cast(Float4, arch::load_shared(Types::result(row, column))));
    rows.store_lse(to, arch::load_shared_float(Types::lse(row)));
  }
}

// The same for a cluster of two: each workgroup combines half of the rows. All DSMEM loads are
// issued first: their latency is ten times that of local shared memory.
template <KernelSpec spec, int warps>
void combine_mla_cluster(const DecodeArguments& a, int warp) {
  using Types = MlaWarpSpecializedTypes<spec>;
  constexpr int half = Types::rows / 2, at_once = half / warps,
                chunks = mla_values / (4 * arch::wave_size);
  static_assert(half % warps == 0);
  const MlaResultRows<spec> rows(a);
  const int rank = MlaCluster::rank(), first = half * rank + warp;
  float lse[at_once][2];  // local, remote
  Float4 others[at_once][chunks];
  ROCFLASH_UNROLL
  for (int i = 0; i < at_once; ++i) {
    const int row = first + i * warps;
    lse[i][1] = arch::load_dsmem_float(arch::mapa(1 - rank, Types::lse(row)));
    const SharedAddress from = arch::mapa(1 - rank, Types::result(row, 4 * arch::lane()));
    ROCFLASH_UNROLL
    for (int c = 0; c < chunks; ++c)
      others[i][c] =
          arch::load_dsmem_floats(from + static_cast<std::uint32_t>(c * 16 * arch::wave_size));
    lse[i][0] = arch::load_shared_float(Types::lse(row));
  }
  ROCFLASH_UNROLL
  for (int i = 0; i < at_once; ++i) {
    const int row = first + i * warps;
    if (row >= rows.count) break;
    const auto to = rows.row(row);
    float weight[2], max_lse = -infinity, sum = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      if (__builtin_fabsf(lse[i][n]) == infinity) lse[i][n] = -infinity;  // fully masked
      max_lse = __builtin_fmaxf(max_lse, lse[i][n]);
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      weight[n] = lse[i][n] == -infinity ? 0.0f : arch::exp2((lse[i][n] - max_lse) * log2_e);
      sum += weight[n];
    }
    const float factor = sum == 0 ? 0.0f : 1 / sum;
    ROCFLASH_UNROLL
    for (int c = 0; c < chunks; ++c) {
      const int column = 4 * (c * arch::wave_size + arch::lane());
      Float4 x = {};
      if (weight[0] != 0)
        x = weight[0] * factor *
            __builtin_bit_cast(Float4, arch::load_shared(Types::result(row, column)));
      if (weight[1] != 0) x += weight[1] * factor * others[i][c];
      rows.store(to, column, x);
    }
    rows.store_lse(to, sum == 0 ? infinity : max_lse + arch::log2(sum) * ln_2);
  }
}

}  // namespace rocflash::kernel
