// Producer warpgroup of sm90_warp_specialized.hpp, and what it shares with the consumers: types,
// shared memory layout, work tile info.
//
// With a paged KV cache a tile is several TMA boxes, each within one page and issued by a thread of
// its own. Tiles end at box boundaries. V rows past the end of the sequence are arbitrary: the
// consumers zero them in shared memory.
#pragma once

#include "arch/arch.hpp"
#include "attention/mask_bounds.hpp"
#include "attention/paged_tma.hpp"
#include "attention/sequence.hpp"
#include "attention/tile_scheduler.hpp"
#include "attention/work_tile.hpp"
#include "table/forward.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

// Work tile info from the producer to the consumers, in shared memory: consumers compute none of
// it, and hold a field in registers only while they need it.
class WorkTileInfo {
 public:
  static constexpr std::uint32_t bytes = 48;
  enum Field {
    work_tile,  // index in the tile scheduler's order; negative: no more work tiles
    tiles,      // key tiles
    end_key,    // end of the visible keys, rounded up to a box with a paged KV cache
    first_query,
    unmasked_begin,  // keys that all queries attend to
    unmasked_end,
    head,
    batch,   // of the rows of Q and O; 0 for varlen
    q_row,   // first row of the sequence
    q_rows,  // allocated rows of the sequence
    sq,      // queries in use
    sk       // keys in use
  };

  explicit WorkTileInfo(SharedAddress at) : at_(at) {}
  std::int32_t operator[](Field field) const {
    return static_cast<std::int32_t>(arch::load_shared4(at_ + 4 * field));
  }
  void store(Field field, std::int32_t x) const {
    arch::store_shared(at_ + 4 * field, static_cast<std::uint32_t>(x));
  }

 private:
  SharedAddress at_;
};

// Types and shared memory layout of one kernel.
template <KernelSpec spec>
struct WarpSpecializedTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr ForwardWarpgroups tile = warp_specialized_tile(spec);
  static constexpr bool is_paged = spec.schedule == Schedule::warp_specialized_paged;
  static constexpr int q_stages = tile.q_stages, stages = tile.stages, queries = tile.queries();
  // Slots of work tile info: one per stage of Q and one for the work tile in the epilogue. A power
  // of two makes the modulo cheap.
  static constexpr std::uint32_t info_slots = 4;
  static_assert(q_stages + 1 <= static_cast<int>(info_slots));

  using QueryTile = TmaTile<queries, bucket>;
  using KeyTile = TmaTile<tile.keys, bucket>;
  using Scores = WarpgroupTile<tile.keys>;
  using Weights = Fragments<tile.keys / wgmma_k>;
  using Outputs = WarpgroupTile<bucket>;

  static SharedAddress q(int stage) {
    return arch::shared_begin() + static_cast<std::uint32_t>(stage * QueryTile::bytes);
  }
  static SharedAddress k(int stage) {
    return q(q_stages) + static_cast<std::uint32_t>(stage * KeyTile::bytes);
  }
  static SharedAddress v(int stage) { return k(stages + stage); }
  static SharedAddress mask_bounds(int query) {
    return k(2 * stages) + 8 * static_cast<std::uint32_t>(query);
  }
  // Of the workgroup's n-th work tile.
  static WorkTileInfo work_tile_info(std::uint32_t n) {
    return WorkTileInfo(mask_bounds(queries) + WorkTileInfo::bytes * (n % info_slots));
  }
  static SharedAddress barriers() {
    return mask_bounds(queries) + WorkTileInfo::bytes * info_slots;
  }
  static Pipeline<q_stages> q_pipeline() { return Pipeline<q_stages>(barriers()); }
  static Pipeline<stages> k_pipeline() {
    return Pipeline<stages>(barriers() + Pipeline<q_stages>::bytes);
  }
  static Pipeline<stages> v_pipeline() {
    return Pipeline<stages>(barriers() + Pipeline<q_stages>::bytes + Pipeline<stages>::bytes);
  }
  static_assert(QueryTile::bytes % QueryTile::alignment == 0 &&
                KeyTile::bytes % KeyTile::alignment == 0);
};

// Index of a producer thread with a paged KV cache. Consecutive indices are in different warps: a
// warp issues the TMA loads of its lanes one by one, which takes longer than the loads themselves.
inline int producer_thread() {
  constexpr int warps = arch::warpgroup_size / arch::wave_size;
  const int thread = arch::reload_tid();
  return thread % arch::wave_size * warps + thread / arch::wave_size;
}

// Producer warpgroup: one thread, or with a paged KV cache one thread per TMA box of a tile, of
// which the leader loads Q and writes the work tile info.
template <KernelSpec spec>
class ForwardProducer {
  using Types = WarpSpecializedTypes<spec>;
  using QueryTile = typename Types::QueryTile;
  using KeyTile = typename Types::KeyTile;
  static constexpr bool is_paged = Types::is_paged;

  // Rows of K and V that a work tile reads, from the end on.
  struct KeyRows {
    std::int32_t tiles = 0, end_row = 0, first_row = 0;
  };

 public:
  [[gnu::always_inline]] explicit ForwardProducer(const ForwardWarpSpecializedArguments& a)
      : a_(a) {}

  [[gnu::always_inline]] void produce_tiles() {
    const Problem& p = a_.forward.problem;
    if (is_leader()) {
      arch::prefetch(a_.q);
      arch::prefetch(a_.k);
      arch::prefetch(a_.v);
    }
    // Loaded again where ptxas would spill the number of workgroups at the kernel's start.
    const int workgroups =
        is_paged && spec.bucket > 64 ? arch::reload_nctaid() : arch::workgroup_count();
    for (TileScheduler scheduler(a_.forward.work, a_.pairs != 0, arch::workgroup_id(), workgroups);
         scheduler.more(); scheduler.next()) {
      const WorkTile item(a_.forward.work, static_cast<std::int32_t>(p.heads), scheduler.number());
      const SequenceView sequence(p, item.batch);
      const std::int32_t first_query = item.block * Types::queries;
      if (first_query >= sequence.q_rows) continue;
      q_pipeline_.producer_acquire(q_state_);
      const WorkTileInfo info = Types::work_tile_info(work_tiles_);
      KeyRows rows = store_info(info, scheduler.number(), item, sequence, first_query);
      if (rows.tiles == 0) {
        commit_work_tile(0);
        continue;
      }
      load_q(info, item, first_query);
      load_kv(item, rows);
    }
    // End of work.
    q_pipeline_.producer_acquire(q_state_);
    if (is_leader()) Types::work_tile_info(work_tiles_).store(WorkTileInfo::work_tile, -1);
    commit_work_tile(0);
  }

 private:
  static bool is_leader() { return !is_paged || producer_thread() == 0; }

  // The consumers may read the info once `bytes` of Q have arrived.
  [[gnu::always_inline]] SharedAddress commit_work_tile(int bytes) {
    ++work_tiles_;
    const SharedAddress full = is_leader() ? q_pipeline_.producer_expect_tx(q_state_, bytes) : 0;
    q_state_.advance();
    return full;
  }

  [[gnu::always_inline]] KeyRows store_info(WorkTileInfo info, std::int32_t work_tile,
                                            const WorkTile& item, const SequenceView& sequence,
                                            std::int32_t first_query) const {
    const Problem& p = a_.forward.problem;
    KeyRows rows;
    const auto store = [&](WorkTileInfo::Field field, std::int32_t x) {
      if (is_leader()) info.store(field, x);
    };
    store(WorkTileInfo::work_tile, work_tile);
    store(WorkTileInfo::first_query, first_query);
    store(WorkTileInfo::head, item.head);
    store(WorkTileInfo::batch, p.lengths.packed_q() ? 0 : item.batch);
    store(WorkTileInfo::q_row, static_cast<std::int32_t>(sequence.q_row));
    store(WorkTileInfo::q_rows, sequence.q_rows);
    store(WorkTileInfo::sq, sequence.sq);
    store(WorkTileInfo::sk, sequence.sk);
    const std::int32_t end_query =
        first_query + Types::queries < sequence.sq ? first_query + Types::queries : sequence.sq;
    if (first_query < end_query) {
      const MaskBounds bounds(p.visibility, sequence.sq, sequence.sk);
      const std::int32_t first_key = bounds.begin(first_query),
                         k_row = static_cast<std::int32_t>(sequence.k_row);
      std::int32_t end_key = bounds.end(end_query - 1);
      store(WorkTileInfo::unmasked_begin, bounds.begin(end_query - 1));
      store(WorkTileInfo::unmasked_end, bounds.end(first_query));
      if (is_paged && end_key > first_key)
        end_key = (k_row + end_key + a_.tile_grain - 1) / a_.tile_grain * a_.tile_grain - k_row;
      store(WorkTileInfo::end_key, end_key);
      if (end_key > first_key)
        rows.tiles = (end_key - first_key + KeyTile::rows - 1) / KeyTile::rows;
      rows.end_row = k_row + end_key;
      rows.first_row = k_row + first_key;
    }
    store(WorkTileInfo::tiles, rows.tiles);
    return rows;
  }

  [[gnu::always_inline]] void load_q(WorkTileInfo info, const WorkTile& item,
                                     std::int32_t first_query) {
    const SharedAddress q = Types::q(q_state_.stage());
    const SharedAddress q_full = commit_work_tile(QueryTile::bytes);
    if (is_leader())
      tma_load_tile<QueryTile>(q, a_.q, q_full, info[WorkTileInfo::q_row] + first_query, item.head,
                               info[WorkTileInfo::batch], arch::CacheHint::evict_first);
  }

  // K and V tiles, from the last visible key to the first. The last tile may start before the first
  // key, in rows of another sequence: those are masked.
  [[gnu::always_inline]] void load_kv(const WorkTile& item, KeyRows rows) {
    const Problem& p = a_.forward.problem;
    const auto kv_head = static_cast<std::int32_t>(p.kv_head(item.head));
    const std::int32_t k_batch = p.lengths.packed_k() ? 0 : item.batch;
    std::int32_t row = rows.end_row;
    for (; rows.tiles > 0; --rows.tiles) {
      row -= KeyTile::rows;
      if constexpr (is_paged) {
        load_paged_box(item.batch, kv_head, row, rows.first_row);
      } else {
        tma_load_tile<KeyTile>(Types::k(kv_state_.stage()), a_.k,
                               k_pipeline_.producer_acquire_expect_tx(kv_state_, KeyTile::bytes),
                               row, kv_head, k_batch, arch::CacheHint::evict_last);
        tma_load_tile<KeyTile>(Types::v(kv_state_.stage()), a_.v,
                               v_pipeline_.producer_acquire_expect_tx(kv_state_, KeyTile::bytes),
                               row, kv_head, k_batch, arch::CacheHint::evict_last);
      }
      kv_state_.advance();
    }
  }

  // This thread's box of a K and of a V tile: one column block of a_.box_rows rows.
  [[gnu::always_inline]] void load_paged_box(std::int32_t batch, std::int32_t kv_head,
                                             std::int32_t row, std::int32_t first_row) {
    const int box_index = producer_thread(), column_block = box_index % KeyTile::count,
              tile_row = box_index / KeyTile::count * a_.box_rows;
    const auto offset = static_cast<std::uint32_t>(column_block * KeyTile::column_block_bytes +
                                                   tile_row * KeyTile::row_bytes);
    const PagedTmaBox box(a_.forward.problem.k, a_.forward.caches, batch, row + tile_row,
                          a_.box_rows, first_row);
    const auto load = [&](SharedAddress tile, const TensorMap& map, const auto& pipeline) {
      const SharedAddress full =
          pipeline.producer_acquire_expect_tx(kv_state_, a_.box_rows * KeyTile::row_bytes);
      arch::tma_load(tile + offset, map, full, column_block * KeyTile::width, box.row, kv_head,
                     box.page, arch::CacheHint::evict_last);
    };
    load(Types::k(kv_state_.stage()), a_.k, k_pipeline_);
    load(Types::v(kv_state_.stage()), a_.v, v_pipeline_);
  }

  const ForwardWarpSpecializedArguments& a_;
  const Pipeline<Types::q_stages> q_pipeline_ = Types::q_pipeline();
  const Pipeline<Types::stages> k_pipeline_ = Types::k_pipeline(),
                                v_pipeline_ = Types::v_pipeline();
  ProducerState<Types::q_stages> q_state_;
  ProducerState<Types::stages> kv_state_;
  std::uint32_t work_tiles_ = 0;
};

template <KernelSpec spec>
void produce_tiles(const ForwardWarpSpecializedArguments& a) {
  ForwardProducer<spec>(a).produce_tiles();
}

}  // namespace rocflash::kernel
