// Types, shared memory and producer warpgroup of sm90_consumer.hpp and
// sm90_warp_specialized_large.hpp.
//
//   shared memory   k, v; stages of q and dout with their row statistics; two tiles of dS; one of
//                   dQ; the queries that attend to each key; block and tile information for the
//                   consumers
#pragma once

#include "arch/arch.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "backward/dq_accumulator.hpp"
#include "backward/dq_ordered.hpp"
#include "backward/query_tiles.hpp"
#include "backward/row_statistics.hpp"
#include "backward/sm90_pdl.hpp"
#include "table/backward.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

// Words in shared memory that one thread writes for the other roles, which saves registers.
template <class Word>
class SharedWords {
 public:
  explicit SharedWords(SharedAddress at) : at_(at) {}
  std::int32_t operator[](Word word) const {
    return static_cast<std::int32_t>(arch::load_shared4(at_ + 4 * word));
  }
  float* floats(Word word) const {
    return __builtin_bit_cast(float*, arch::load_shared8(at_ + 4 * word));
  }
  void store(Word word, std::int32_t x) const {
    arch::store_shared(at_ + 4 * word, static_cast<std::uint32_t>(x));
  }
  void store(Word word, const float* x) const {
    arch::store_shared(at_ + 4 * word, __builtin_bit_cast(Words2, x));
  }

 private:
  SharedAddress at_;
};

// A query tile.
struct TileInfo {
  enum Word {
    sums = 0,               // address of the dQ accumulator of the first queries, 2 words
    query = 2,              // first query
    rows,                   // queries of the sequence from there on
    left,                   // tiles that follow
    is_first,               // the first tile of the block
    is_edge,                // needs a mask
    number,                 // index of the tile
    counter,                // address of the ordered accumulation's counter, 2 words
    previous_counter = 10,  // counter of the previous tile, or null, 2 words
    ticket = 12             // value of the counter at which this block may accumulate
  };
  static constexpr std::uint32_t bytes = 64;
};

// A workgroup's block of keys and its query tiles.
struct WorkTileInfo {
  enum Word {
    lse = 0,
    delta = 2,
    sums = 4,  // address for the first query of the first head, 2 words, as lse and delta
    keys = 6,  // keys of the sequence from the block's first key on
    k_row,     // TMA coordinates of K, V and Q, up to q_batch
    k_batch,
    k_head,
    q_row,
    q_batch,
    sq,
    first,
    end,
    common_begin,
    common_end,
    start,
    count,               // the fields of QueryTiles, from `first` on
    number,              // index of the block in its sequence
    counters = 20,       // address of the counters of the first head, 2 words
    head_counters = 22,  // counters per head
    sk
  };
  static constexpr std::uint32_t bytes = 96;
};

// Pipeline states of a tile: of q, and of dout and the statistics. One state is enough where the
// pipelines have the same number of stages.
template <int q_stages, int stages>
class TilePipelineStates {
 public:
  const ConsumerState<q_stages>& q() const { return q_; }
  const ConsumerState<stages>& rest() const {
    if constexpr (q_stages == stages) {
      return q_;
    } else {
      return rest_;
    }
  }
  void advance() {
    q_.advance();
    if constexpr (q_stages != stages) rest_.advance();
  }

 private:
  ConsumerState<q_stages> q_;
  ConsumerState<stages> rest_;
};

template <KernelSpec spec>
struct WarpSpecializedTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr bool consumers_add_dq = true;  // the warpgroups that own keys add to dq
  static constexpr int bucket = spec.bucket;
  static constexpr BackwardWarpgroups tile = backward_warpgroups(spec);
  static constexpr int q_stages = tile.q_stages;
  static constexpr int stages = tile.stages, queries = tile.queries, keys = tile.keys();
  static constexpr int computing_threads = tile.consumers * arch::warpgroup_size;

  using KeyTile = TmaTile<keys, bucket>;
  using QueryTile = TmaTile<queries, bucket>;
  using ScoreTile = TmaTile<keys, queries>;  // one row per key
  using Scores = WarpgroupTile<queries>;
  using Weights = Fragments<queries / wgmma_k>;  // P and dS as operands
  using DkDvTile = WarpgroupTile<bucket>;
  // dQ of a warpgroup: 64 queries by a slice of the columns.
  static constexpr int query_columns = tile.query_columns(bucket),
                       dq_warpgroups = tile.dq_warpgroups();
  using DqTile = WarpgroupTile<query_columns>;
  static constexpr int strips = query_columns / DqAccumulator::columns;  // of a warp's 16 queries
  static constexpr std::uint32_t warp_sums = 4 * DqAccumulator::block_floats * strips;
  static_assert(queries == warpgroup_rows);
  static_assert(query_columns % KeyTile::width == 0 && ScoreTile::width == warpgroup_rows);

  using Tiles = QueryTiles<keys, queries>;
  using TileWords = SharedWords<TileInfo::Word>;
  using BlockWords = SharedWords<WorkTileInfo::Word>;
  using QPipeline = Pipeline<q_stages>;
  using QueryPipeline = Pipeline<stages>;

  static SharedAddress k() { return arch::shared_begin(); }
  static SharedAddress v() { return k() + KeyTile::bytes; }
  static SharedAddress q(int stage) {
    return k() + 2 * KeyTile::bytes + static_cast<std::uint32_t>(stage * QueryTile::bytes);
  }
  static SharedAddress dout(int stage) { return q(q_stages + stage); }
  static SharedAddress ds(std::uint32_t half) { return dout(stages) + half * ScoreTile::bytes; }
  static SharedAddress dq(int warpgroup, int warp) {
    return ds(2) + static_cast<std::uint32_t>(4 * warpgroup + warp) * warp_sums;
  }
  // Per stage: -lse · log2(e) and delta of each query, and the TileInfo.
  static constexpr std::uint32_t statistic_bytes = 8 * queries + TileInfo::bytes;
  static SharedAddress minus_lse(int stage) {
    return dq(dq_warpgroups, 0) + static_cast<std::uint32_t>(stage) * statistic_bytes;
  }
  static SharedAddress delta(int stage) { return minus_lse(stage) + 4 * queries; }
  static TileWords tile_info(int stage) { return TileWords(minus_lse(stage) + 8 * queries); }
  static SharedAddress attending(int key) {  // first query that attends to the key, and count
    return minus_lse(stages) + 8 * static_cast<std::uint32_t>(key);
  }
  static BlockWords block() { return BlockWords(attending(keys)); }
  static Pipeline<1> key_pipeline() { return Pipeline<1>(attending(keys) + WorkTileInfo::bytes); }
  static QPipeline q_pipeline() {
    return QPipeline(attending(keys) + WorkTileInfo::bytes + Pipeline<1>::bytes);
  }
  static SharedAddress pipeline(std::uint32_t n) {
    return attending(keys) + WorkTileInfo::bytes + Pipeline<1>::bytes + QPipeline::bytes +
           n * QueryPipeline::bytes;
  }
  static QueryPipeline dout_pipeline() { return QueryPipeline(pipeline(0)); }
  static QueryPipeline statistics_pipeline() { return QueryPipeline(pipeline(1)); }
  // P passes from one consumer to the other (tile.shares_keys) through the second tile of dS.
  static Pipeline<1> weights_pipeline() { return Pipeline<1>(pipeline(2)); }
  // Tiles whose dQ has been added, for ordered accumulation (tile.shares_keys).
  static Pipeline<1> added_pipeline() { return Pipeline<1>(pipeline(2) + Pipeline<1>::bytes); }
  static constexpr int shared_bytes =
      2 * KeyTile::bytes + (q_stages + stages) * QueryTile::bytes + 2 * ScoreTile::bytes +
      dq_warpgroups * 4 * static_cast<int>(warp_sums) + stages * static_cast<int>(statistic_bytes) +
      8 * keys + static_cast<int>(WorkTileInfo::bytes) + Pipeline<1>::bytes + QPipeline::bytes +
      2 * QueryPipeline::bytes + (tile.shares_keys ? 2 * Pipeline<1>::bytes : 0);
  static_assert(shared_bytes == backward_warpgroups_smem(spec));
  static_assert(KeyTile::bytes % 1024 == 0 && QueryTile::bytes % 1024 == 0 &&
                ScoreTile::bytes % 1024 == 0);
};

// A workgroup's block of keys. Under a causal mask most queries attend to the first keys, so those
// blocks start first (LPT order). With ordered accumulation they start last, the order of
// accumulation.
template <class Types>
struct KeyBlock {
  WorkTile item;
  SequenceView sequence;
  std::int32_t begin;

  explicit KeyBlock(const BackwardArguments& a, int workgroup = arch::workgroup_id())
      : item(a.work, static_cast<std::int32_t>(a.problem.kv_heads), workgroup),
        sequence(a.problem, item.batch),
        begin((DqOrder::is_ordered(a) ? item.block : a.work.blocks - 1 - item.block) *
              Types::keys) {}
  bool exist() const { return begin < sequence.sk; }
  std::int32_t rows() const { return sequence.sk - begin; }
};

// Stores the block information for all roles, before the warpgroups diverge.
template <class Types>
void store_block_info(const BackwardArguments& a, const KeyBlock<Types>& own) {
  const Problem& p = a.problem;
  const SequenceView& sequence = own.sequence;
  // Different warps store different parts.
  if (const int key = arch::thread() - arch::warpgroup_size; key >= 0 && key < Types::keys) {
    const KeyView view(p.visibility, sequence, own.begin + key);
    arch::store_shared(Types::attending(key),
                       Words2{static_cast<std::uint32_t>(view.begin),
                              static_cast<std::uint32_t>(view.end - view.begin)});
  }
  if (arch::thread() != 0) return;
  const auto block = Types::block();
  const auto head = static_cast<std::int64_t>(own.item.head) * p.gqa_group();
  block.store(WorkTileInfo::lse, &a.minus_lse_log2.at(sequence.batch, head, sequence.q_row));
  block.store(WorkTileInfo::delta, &a.delta.at(sequence.batch, head, sequence.q_row));
  block.store(WorkTileInfo::sums, DqAccumulator(a, sequence, head).start(0, 0));
  block.store(WorkTileInfo::keys, own.rows());
  block.store(WorkTileInfo::k_row, static_cast<std::int32_t>(sequence.k_row) + own.begin);
  block.store(WorkTileInfo::k_batch, p.lengths.packed_k() ? 0 : own.item.batch);
  block.store(WorkTileInfo::k_head, own.item.head);
  block.store(WorkTileInfo::q_row, static_cast<std::int32_t>(sequence.q_row));
  block.store(WorkTileInfo::q_batch, p.lengths.packed_q() ? 0 : own.item.batch);
  block.store(WorkTileInfo::sq, sequence.sq);
  const typename Types::Tiles tiles(p.visibility, sequence, own.begin, DqOrder::is_ordered(a));
  block.store(WorkTileInfo::first, tiles.first);
  block.store(WorkTileInfo::end, tiles.end);
  block.store(WorkTileInfo::common_begin, tiles.common_begin);
  block.store(WorkTileInfo::common_end, tiles.common_end);
  block.store(WorkTileInfo::start, tiles.start);
  block.store(WorkTileInfo::count, tiles.count);
  if (!DqOrder::is_ordered(a)) return;
  const DqOrder dq_order(a, sequence);
  block.store(WorkTileInfo::number, own.begin / Types::keys);
  block.store(WorkTileInfo::counters, reinterpret_cast<const float*>(dq_order.counter(head, 0)));
  block.store(WorkTileInfo::head_counters, static_cast<std::int32_t>(dq_order.head_stride()));
  block.store(WorkTileInfo::sk, sequence.sk);
}

// The counter of a tile; `head` counts from 0 within the GQA group.
template <class Types>
const float* counter_of_tile(std::int32_t query, std::int32_t head) {
  const auto block = Types::block();
  return block.floats(WorkTileInfo::counters) +
         std::int64_t{head} * block[WorkTileInfo::head_counters] + query / DqAccumulator::rows;
}

// Stores the position of this block in the accumulation order of a tile. Blocks accumulate in the
// order in which they start, so that none waits for one that cannot start. `before` is the previous
// tile's info.
template <class Types>
void store_order(const BackwardArguments& a, std::int32_t query, std::int32_t head,
                 typename Types::TileWords info, typename Types::TileWords before) {
  const auto block = Types::block();
  const MaskBounds bounds(a.problem.visibility, block[WorkTileInfo::sq], block[WorkTileInfo::sk]);
  info.store(TileInfo::counter, counter_of_tile<Types>(query, head));
  info.store(TileInfo::previous_counter, info[TileInfo::number] > 0
                                             ? before.floats(TileInfo::counter)
                                             : static_cast<const float*>(nullptr));
  info.store(TileInfo::ticket, blocks_before<Types::keys, Types::queries>(
                                   bounds, block[WorkTileInfo::number], query));
}

// This block's position in the accumulation order of a tile.
struct OrderedSlot {
  const float* counter;
  std::uint32_t number;

  template <class Words>
  explicit OrderedSlot(Words info)
      : counter(info.floats(TileInfo::counter)),
        number(static_cast<std::uint32_t>(info[TileInfo::ticket])) {}
  bool ready() const {
    return arch::load_counter(reinterpret_cast<const std::uint32_t*>(counter)) >= number;
  }
};

// is_ready: the preceding blocks have added. wait_until_ready: spins until then. release_counter:
// this block's additions are complete.
template <class Words>
bool is_ready(Words info) {
  return OrderedSlot(info).ready();
}
template <class Words>
void wait_until_ready(Words info, bool ready) {
  while (!ready) ready = is_ready(info);
  arch::fence_proxy_async_global();
}
inline void wait_until_ready(const OrderedSlot& slot, bool ready) {
  while (!ready) ready = slot.ready();
  arch::fence_proxy_async_global();
}
inline void release_counter(const float* counter) {
  if (!counter) return;
  arch::fence_proxy_async_global();
  arch::atomic_add(reinterpret_cast<std::uint32_t*>(const_cast<float*>(counter)));
}

// Iterates over the tiles of the block in the order of all roles; `head` counts from 0 within the
// GQA group.
template <class Types>
struct TileCursor {
  std::int32_t query = Types::block()[WorkTileInfo::start], head = 0;

  void advance() {
    const auto block = Types::block();
    query += Types::queries;
    if (query >= block[WorkTileInfo::end]) query = block[WorkTileInfo::first];
    if (query == block[WorkTileInfo::start]) ++head;
  }
};

// Calls tile(query, head, left) for each tile of the block; `left` tiles follow.
template <class Types, class Tile>
void for_each_tile(std::int32_t gqa_group, Tile tile) {
  TileCursor<Types> cursor;
  for (std::int32_t left = Types::block()[WorkTileInfo::count] * gqa_group; left-- > 0;
       cursor.advance())
    tile(cursor.query, cursor.head, left);
}

// The TMA producer thread.
template <KernelSpec spec>
void load_tiles(const BackwardWarpSpecializedArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  const auto block = Types::block();
  const auto keys_full =
      Types::key_pipeline().producer_expect_tx(ProducerState<1>(), 2 * KeyTile::bytes);
  const auto copy_keys = [&](SharedAddress to, const TensorMap& map) {
    tma_load_tile<KeyTile>(to, map, keys_full, block[WorkTileInfo::k_row],
                           block[WorkTileInfo::k_head], block[WorkTileInfo::k_batch],
                           arch::CacheHint::evict_first);
  };
  copy_keys(Types::k(), a.k);
  copy_keys(Types::v(), a.v);
  const auto gqa_group = static_cast<std::int32_t>(a.backward.problem.gqa_group());
  ProducerState<Types::q_stages> q_state;
  ProducerState<Types::stages> state;
  for_each_tile<Types>(gqa_group, [&](std::int32_t query, std::int32_t head, std::int32_t) {
    const auto copy = [&](SharedAddress to, const TensorMap& map, SharedAddress full) {
      tma_load_tile<QueryTile>(to, map, full, block[WorkTileInfo::q_row] + query,
                               block[WorkTileInfo::k_head] * gqa_group + head,
                               block[WorkTileInfo::q_batch], arch::CacheHint::evict_last);
    };
    copy(Types::q(q_state.stage()), a.q,
         Types::q_pipeline().producer_acquire_expect_tx(q_state, QueryTile::bytes));
    q_state.advance();
    copy(Types::dout(state.stage()), a.dout,
         Types::dout_pipeline().producer_acquire_expect_tx(state, QueryTile::bytes));
    state.advance();
  });
}

// The second producer warp loads lse, delta and the TileInfo of each tile. Out-of-bounds queries
// get an lse for which P is 0.
template <KernelSpec spec>
void load_statistics(const BackwardArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  const auto block = Types::block();
  const auto pipeline = Types::statistics_pipeline();
  ProducerState<Types::stages> state;
  wait_for_preprocess();
  const auto gqa_group = static_cast<std::int32_t>(a.problem.gqa_group());
  // Ordered accumulation: a consumer that has released a stage has completed the additions of the
  // previous tile.
  const bool passes = DqOrder::is_ordered(a) && !Types::tile.shares_keys;
  const auto pass = [&](bool was_used) {
    if (was_used && passes && arch::lane() == 0)
      release_counter(Types::tile_info(state.stage()).floats(TileInfo::previous_counter));
  };
  for_each_tile<Types>(gqa_group, [&](std::int32_t query, std::int32_t head, std::int32_t left) {
    const std::int32_t rows = block[WorkTileInfo::sq] - query;
    pipeline.producer_acquire(state);
    pass(left + 1 + Types::stages <= block[WorkTileInfo::count] * gqa_group);
    const auto copy = [&](SharedAddress to, WorkTileInfo::Word base, std::int64_t head_stride,
                          float fallback) {
      const float* const from = block.floats(base) + head * head_stride + query;
      _Pragma("clang loop unroll(disable)") for (int n = arch::lane(); n < Types::queries;
                                                 n += arch::wave_size) {
        const float x = n < rows ? arch::load(from + n) : fallback;
        arch::store_shared(to + static_cast<std::uint32_t>(4 * n),
                           __builtin_bit_cast(std::uint32_t, x));
      }
    };
    copy(Types::minus_lse(state.stage()), WorkTileInfo::lse, a.minus_lse_log2.head_stride,
         -infinity);
    copy(Types::delta(state.stage()), WorkTileInfo::delta, a.delta.head_stride, 0);
    if (arch::lane() == 0) {
      const auto info = Types::tile_info(state.stage());
      info.store(TileInfo::sums, block.floats(WorkTileInfo::sums) + head * a.dq_accum.head_stride +
                                     std::int64_t{query} * spec.bucket);
      info.store(TileInfo::query, query);
      info.store(TileInfo::rows, rows);
      info.store(TileInfo::left, left);
      const std::int32_t number = block[WorkTileInfo::count] * gqa_group - 1 - left;
      info.store(TileInfo::is_first, number == 0);
      info.store(TileInfo::number, number);
      if (DqOrder::is_ordered(a))
        store_order<Types>(a, query, head, info, Types::tile_info(state.before().stage()));
      info.store(TileInfo::is_edge, query < block[WorkTileInfo::common_begin] ||
                                        query + Types::queries > block[WorkTileInfo::common_end]);
    }
    pipeline.producer_expect_tx(state, 0);  // each lane arrives for its own stores
    state.advance();
  });
  if (!passes) return;
  const std::int32_t count = block[WorkTileInfo::count] * gqa_group;
  for (std::int32_t n = 0; n < Types::stages; ++n) {
    pipeline.producer_acquire(state);
    pass(n + count >= Types::stages);
    if (n + 1 < Types::stages) state.advance();
  }
  if (count > 0 && arch::lane() == 0)
    release_counter(Types::tile_info(state.stage()).floats(TileInfo::counter));
}

// The third producer warp releases counters with ordered accumulation: the device-wide fence has a
// high latency.
template <KernelSpec spec>
void release_counters(const BackwardArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  if (!DqOrder::is_ordered(a) || arch::lane() != 0) return;
  ConsumerState<1> state;
  for_each_tile<Types>(static_cast<std::int32_t>(a.problem.gqa_group()),
                       [&](std::int32_t query, std::int32_t head, std::int32_t) {
                         Types::added_pipeline().consumer_wait(state);
                         Types::added_pipeline().consumer_release(state);
                         state.advance();
                         release_counter(counter_of_tile<Types>(query, head));
                       });
}

// The named barrier that signals that all additions to dQ are complete.
inline constexpr arch::NamedBarrier dq_reduced{6};

// The producer warpgroup.
template <KernelSpec spec>
void producer_warpgroup(const BackwardWarpSpecializedArguments& a) {
  arch::reg_dealloc<WarpSpecializedTypes<spec>::tile.producer_registers>();
  if (arch::thread() == 0) load_tiles<spec>(a);
  if (arch::wave() == 1) load_statistics<spec>(a.backward);
  if constexpr (WarpSpecializedTypes<spec>::tile.shares_keys) {
    if (arch::wave() == 2) release_counters<spec>(a.backward);
  } else if (arch::wave() == 3) {
    // Signals for the consumers, which need not wait for the fence.
    arch::barrier_sync(dq_reduced, WarpSpecializedTypes<spec>::computing_threads + arch::wave_size);
    signal_dq_done(a.backward);
  }
}

}  // namespace rocflash::kernel
