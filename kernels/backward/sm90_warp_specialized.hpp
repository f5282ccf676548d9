// Warp-specialized backward on Hopper up to 64 columns. Accumulators are half as large as in
// sm90_consumer.hpp, so that registers hold k and v as operands, and the producer warpgroup
// computes dQ:
//
//   two consumers    S, dP, P, dS, dV, dK of 64 keys each. They store dS and do not wait for each
//                    other, only for the producer if it lags by two tiles.
//   producer         dQ = dS·K and its reduce-add; TMA loads, row statistics
//
// Query stages are not released explicitly: a consumer that has stored dS of a tile has completed
// all products of the previous tile.
//
// Cycles per tile of 64 queries and 128 keys of 64 columns: WGMMA 1280; shared memory
// 1536 (S, dP, dV and dK read one operand, 128 each; dQ two, 256; its reduce-add 256, lse and delta
// 256, TMA loads 128, dS 128); exponentials 512.
#pragma once

#include "backward/sm90_consumer.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct DqInProducerTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr bool consumers_add_dq = false;
  static constexpr int bucket = spec.bucket;
  static constexpr BackwardRoles tile = {};
  static constexpr int stages = tile.stages, queries = tile.queries, keys = tile.keys();
  static constexpr int computing_threads = tile.consumers * arch::warpgroup_size;

  using KeyTile = TmaTile<keys, bucket>;
  using QueryTile = TmaTile<queries, bucket>;
  using ScoreTile = TmaTile<keys, queries>;  // one row per key
  using Scores = WarpgroupTile<queries>;
  using Weights = Fragments<queries / wgmma_k>;  // P and dS as operands
  using DkDvTile = WarpgroupTile<bucket>;
  using ResidentKeys = ResidentFragments<bucket / wgmma_k>;  // k and v as operands
  static constexpr int query_columns = bucket;
  using DqTile = WarpgroupTile<bucket>;
  static constexpr int strips = query_columns / DqAccumulator::columns;  // of a warp's 16 queries
  static constexpr std::uint32_t warp_sums = 4 * DqAccumulator::block_floats * strips;  // bytes
  static_assert(queries == warpgroup_rows && ScoreTile::count == 1 && KeyTile::count == 1);

  using Tiles = QueryTiles<keys, queries>;
  using TileWords = SharedWords<TileInfo::Word>;
  using BlockWords = SharedWords<WorkTileInfo::Word>;

  static SharedAddress k() { return arch::shared_begin(); }
  static SharedAddress v() { return k() + KeyTile::bytes; }
  static SharedAddress q(int stage) {
    return k() + 2 * KeyTile::bytes + static_cast<std::uint32_t>(stage * QueryTile::bytes);
  }
  static SharedAddress dout(int stage) { return q(stages + stage); }
  static SharedAddress ds(int half) {
    return dout(stages) + static_cast<std::uint32_t>(half * ScoreTile::bytes);
  }
  static SharedAddress dq(int warp) { return ds(2) + static_cast<std::uint32_t>(warp) * warp_sums; }
  // Per stage: -lse · log2(e) and delta of each query, and the TileInfo.
  static constexpr std::uint32_t statistic_bytes = 8 * queries + TileInfo::bytes;
  static SharedAddress minus_lse(int stage) {
    return dq(4) + static_cast<std::uint32_t>(stage) * statistic_bytes;
  }
  static SharedAddress delta(int stage) { return minus_lse(stage) + 4 * queries; }
  static TileWords tile_info(int stage) { return TileWords(minus_lse(stage) + 8 * queries); }
  static SharedAddress attending(int key) {  // first query that attends to the key, and count
    return minus_lse(stages) + 8 * static_cast<std::uint32_t>(key);
  }
  static BlockWords block() { return BlockWords(attending(keys)); }
  static Pipeline<1> key_pipeline() { return Pipeline<1>(attending(keys) + WorkTileInfo::bytes); }
  // Query tiles, which are not released explicitly, and dS, which a named barrier signals.
  static Pipeline<stages> query_pipeline() {
    return Pipeline<stages>(attending(keys) + WorkTileInfo::bytes + Pipeline<1>::bytes);
  }
  static Pipeline<2> gradient_pipeline() {
    return Pipeline<2>(attending(keys) + WorkTileInfo::bytes + Pipeline<1>::bytes +
                       Pipeline<stages>::bytes);
  }
  static constexpr int shared_bytes = 2 * KeyTile::bytes + 2 * stages * QueryTile::bytes +
                                      2 * ScoreTile::bytes + 4 * static_cast<int>(warp_sums) +
                                      stages * static_cast<int>(statistic_bytes) + 8 * keys +
                                      static_cast<int>(WorkTileInfo::bytes) + Pipeline<1>::bytes +
                                      Pipeline<stages>::bytes + Pipeline<2>::bytes;
  static_assert(shared_bytes == backward_roles_smem(spec));
  static_assert(KeyTile::bytes % 1024 == 0 && QueryTile::bytes % 1024 == 0 &&
                ScoreTile::bytes % 1024 == 0);
};

// The named barrier that signals dS of a tile: two alternate, as their buffers do.
inline arch::NamedBarrier ds_stored(std::int32_t number) {
  return arch::NamedBarrier{2} + number % 2;
}
inline constexpr arch::NamedBarrier dq_warpgroup{4};  // of the producer warpgroup, in its epilogue

// Row statistics of a tile, two queries per lane: loaded long before they are stored.
struct TileStatistics {
  Float2 minus_lse, delta;

  template <class Types>
  void load(const BackwardArguments& a, const TileCursor<Types>& tile) {
    const auto block = Types::block();
    const std::int32_t rows = block[WorkTileInfo::sq] - tile.query;
    const auto number = [&](WorkTileInfo::Word base, std::int64_t head_stride, int n) {
      return n < rows ? arch::load(block.floats(base) + tile.head * head_stride + tile.query + n)
             : base == WorkTileInfo::lse ? -infinity
                                         : 0.0f;
    };
    const int n = 2 * arch::lane();
    minus_lse = {number(WorkTileInfo::lse, a.minus_lse_log2.head_stride, n),
                 number(WorkTileInfo::lse, a.minus_lse_log2.head_stride, n + 1)};
    delta = {number(WorkTileInfo::delta, a.delta.head_stride, n),
             number(WorkTileInfo::delta, a.delta.head_stride, n + 1)};
  }
  template <class Types>
  void store(int stage) const {
    const auto put = [](SharedAddress to, Float2 x) {
      arch::store_shared(to + static_cast<std::uint32_t>(8 * arch::lane()),
                         __builtin_bit_cast(Words2, x));
    };
    put(Types::minus_lse(stage), minus_lse);
    put(Types::delta(stage), delta);
  }
};

// One thread issues the TMA loads of a tile.
template <KernelSpec spec>
void load_tile(const BackwardWarpSpecializedArguments& a,
               const TileCursor<DqInProducerTypes<spec>>& tile,
               const ProducerState<DqInProducerTypes<spec>::stages>& state,
               std::int32_t gqa_group) {
  using Types = DqInProducerTypes<spec>;
  using QueryTile = typename Types::QueryTile;
  const auto block = Types::block();
  const SharedAddress full =
      Types::query_pipeline().producer_expect_tx(state, 2 * QueryTile::bytes);
  const auto copy = [&](SharedAddress to, const TensorMap& map) {
    tma_load_tile<QueryTile>(to, map, full, block[WorkTileInfo::q_row] + tile.query,
                             block[WorkTileInfo::k_head] * gqa_group + tile.head,
                             block[WorkTileInfo::q_batch], arch::CacheHint::evict_last);
  };
  copy(Types::q(state.stage()), a.q);
  copy(Types::dout(state.stage()), a.dout);
}

// One warp stores the row statistics and the TileInfo; each lane arrives for what it stored.
template <KernelSpec spec>
void publish_tile(const BackwardArguments& a, const TileStatistics& statistics,
                  const TileCursor<DqInProducerTypes<spec>>& tile,
                  const ProducerState<DqInProducerTypes<spec>::stages>& state, std::int32_t number,
                  std::int32_t left) {
  using Types = DqInProducerTypes<spec>;
  const auto block = Types::block();
  const auto info = Types::tile_info(state.stage());
  statistics.template store<Types>(state.stage());
  if (arch::lane() == 0) {
    info.store(TileInfo::sums, block.floats(WorkTileInfo::sums) +
                                   tile.head * a.dq_accum.head_stride +
                                   std::int64_t{tile.query} * spec.bucket);
    info.store(TileInfo::query, tile.query);
    info.store(TileInfo::rows, block[WorkTileInfo::sq] - tile.query);
    info.store(TileInfo::left, left);
    info.store(TileInfo::is_edge,
               tile.query < block[WorkTileInfo::common_begin] ||
                   tile.query + Types::queries > block[WorkTileInfo::common_end]);
    info.store(TileInfo::number, number);
    if (DqOrder::is_ordered(a))
      store_order<Types>(a, tile.query, tile.head, info, Types::tile_info(state.before().stage()));
  }
  Types::query_pipeline().producer_expect_tx(state, 0);
}
inline constexpr int tile_producers = 1 + arch::wave_size;  // arrivals at a full barrier

// The producer warpgroup, which also computes dQ.
template <KernelSpec spec>
void producer_and_dq_warpgroup(const BackwardWarpSpecializedArguments& a) {
  using Types = DqInProducerTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using ScoreTile = typename Types::ScoreTile;
  const BackwardArguments& b = a.backward;
  const auto block = Types::block();
  const auto gqa_group = static_cast<std::int32_t>(b.problem.gqa_group());
  const std::int32_t count = block[WorkTileInfo::count] * gqa_group;  // query tiles
  const bool copies = arch::thread() == 0, stores = arch::wave() == 1;
  if (copies) {
    const auto full =
        Types::key_pipeline().producer_expect_tx(ProducerState<1>(), 2 * KeyTile::bytes);
    const auto copy = [&](SharedAddress to, const TensorMap& map) {
      tma_load_tile<KeyTile>(to, map, full, block[WorkTileInfo::k_row], block[WorkTileInfo::k_head],
                             block[WorkTileInfo::k_batch], arch::CacheHint::evict_first);
    };
    copy(Types::k(), a.k);
    copy(Types::v(), a.v);
  }
  if (stores) wait_for_preprocess();
  // The next tile to load.
  TileCursor<Types> tile;
  ProducerState<Types::stages> state;
  const auto advance = [&] {
    tile.advance();
    state.advance();
  };
#pragma clang loop unroll(disable)
  for (std::int32_t n = 0; n < Types::stages && n < count; ++n, advance()) {
    if (copies) load_tile<spec>(a, tile, state, gqa_group);
    if (stores) {
      TileStatistics statistics;
      statistics.load(b, tile);
      publish_tile<spec>(b, statistics, tile, state, n, count - 1 - n);
    }
  }

  // The tile whose dQ is next. With ordered accumulation: the counter of the last tile but one.
  ConsumerState<Types::stages> dq_state;
  const bool ordered = DqOrder::is_ordered(b);
  const float* previous_counter = nullptr;
#pragma clang loop unroll(disable)
  for (std::int32_t number = 0; number < count; ++number, dq_state.advance()) {
    const std::int32_t next = number + Types::stages - 1;
    const bool more = number > 0 && next < count;
    TileStatistics statistics = {};
    if (more && stores) statistics.load(b, tile);
    typename Types::DqTile dq;
    arch::barrier_sync(ds_stored(number), Types::tile.threads());
    {
      WgmmaBatch ds_k;
      ds_k.template multiply<spec.dtype, Types::keys>(
          dq, MnMajorOperand<ScoreTile>(Types::ds(number % 2)),
          MnMajorOperand<KeyTile>(Types::k()));
      ds_k.commit();
    }
    // The stage of the previous tile is free.
    if (more && copies) load_tile<spec>(a, tile, state, gqa_group);
    const auto info = Types::tile_info(dq_state.stage());
    const int warp = arch::wave(), lane = arch::lane();
    bool ready = !ordered || lane != 0;
    if (ordered && warp == 3 && lane == 0) {
      // All warps have completed their additions to the last tile but one.
      release_counter(previous_counter);
      previous_counter = info.floats(TileInfo::previous_counter);
    }
    if (!ready) ready = is_ready(info);
    wait<0>(dq);
    if (copies) Types::gradient_pipeline().consumer_release_stage(number % 2);
    reduce_add_dq<Types>(
        dq, Types::dq(warp), lane,
        info.floats(TileInfo::sums) + DqAccumulator::rows * spec.bucket * warp,
        DqAccumulator::rows * warp < info[TileInfo::rows],
        [&] {
          if (ordered) wait_until_ready(info, ready);
        },
        [&] {
          if (ordered) arch::tma_store_wait<1>();
        });
    if (!more) continue;
    if (stores) publish_tile<spec>(b, statistics, tile, state, next, count - 1 - next);
    advance();
  }
  if (arch::lane() == 0) arch::tma_store_wait<0>();
  signal_dq_done(b);
  if (!ordered || count == 0) return;
  arch::barrier_sync(dq_warpgroup, arch::warpgroup_size);
  if (arch::thread() != 3 * arch::wave_size) return;
  release_counter(previous_counter);
  release_counter(Types::tile_info(dq_state.before().stage()).floats(TileInfo::counter));
}

// The consumer warpgroups; `warpgroup` counts from 0.
template <KernelSpec spec>
void dk_dv_consumer_warpgroup(const BackwardArguments& a, int warpgroup) {
  using Types = DqInProducerTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  constexpr DType dtype = spec.dtype;
  const auto tiles = Types::query_pipeline();

  typename Types::DkDvTile dk, dv;
  dk.clear();
  dv.clear();
  Types::key_pipeline().consumer_wait(ConsumerState<1>());
  clear_out_of_bounds_rows<Types, KeyTile>(Types::k(), Types::block()[WorkTileInfo::keys]);
  clear_out_of_bounds_rows<Types, KeyTile>(Types::v(), Types::block()[WorkTileInfo::keys]);

  if (Types::block()[WorkTileInfo::count] > 0) {
    ConsumerState<Types::stages> state;
    typename Types::Scores s, dp;  // dS in place of dP
    typename Types::Weights p, ds;
    typename Types::ResidentKeys k, v;
    {
      const ConsumerThread thread;
      k.template load<KeyTile>(Types::k(), thread.first_row(warpgroup), thread.lane);
      v.template load<KeyTile>(Types::v(), thread.first_row(warpgroup), thread.lane);
    }
    // Waits for the tile at `state`.
    const auto wait_for_tile = [&] {
      tiles.consumer_wait(state);
      const std::int32_t rows = Types::tile_info(state.stage())[TileInfo::rows];
      clear_out_of_bounds_rows<Types, QueryTile>(Types::q(state.stage()), rows);
      clear_out_of_bounds_rows<Types, QueryTile>(Types::dout(state.stage()), rows);
    };
    {
      wait_for_tile();
      WgmmaBatch k_q(dk);
      k_q.template multiply<dtype>(s, k, KMajorOperand<QueryTile>(Types::q(0)));
      k_q.commit();
      WgmmaBatch v_dout;
      v_dout.template multiply<dtype>(dp, v, KMajorOperand<QueryTile>(Types::dout(0)));
      v_dout.commit();
      wait<1>(s);
    }

#pragma clang loop unroll(disable)
    while (true) {
      const int stage = state.stage();
      const auto info = Types::tile_info(stage);
      const ConsumerThread thread;
      const int first_row = thread.first_row(warpgroup), lane = thread.lane;
      exp2_minus_lse(s, Types::minus_lse(stage), lane, a.problem.scale * Log2Domain::from_natural);
      if (info[TileInfo::is_edge] != 0)
        apply_query_mask<Types>(s, first_row, lane, info[TileInfo::query]);
      p.template convert<dtype>(s);
      wait<0>(dp);
      {
        WgmmaBatch p_dout(p);
        p_dout.template add<dtype>(dv, p, MnMajorOperand<QueryTile>(Types::dout(stage)));
        p_dout.commit();
      }
      compute_ds(s, dp, Types::delta(stage), lane);
      if (info[TileInfo::is_edge] != 0)
        apply_query_mask<Types>(dp, first_row, lane, info[TileInfo::query]);
      ds.template convert<dtype>(dp);
      const std::int32_t left = info[TileInfo::left], number = info[TileInfo::number];
      Types::gradient_pipeline().producer_acquire(number % 2,
                                                  static_cast<std::uint32_t>(number / 2 % 2 ^ 1));
      store_ds<Types>(ds, Types::ds(number % 2), first_row, lane);
      arch::fence_proxy_async();
      arch::barrier_arrive(ds_stored(number), Types::tile.threads());
      {
        WgmmaBatch ds_q(ds);
        ds_q.template add<dtype>(dk, ds, MnMajorOperand<QueryTile>(Types::q(stage)));
        ds_q.commit();
      }
      wait<1>(dv, p);
      state.advance();
      if (left > 0) wait_for_tile();
      // After the last tile the contents of the stage are arbitrary; the result is not used.
      {
        WgmmaBatch k_q;
        k_q.template multiply<dtype>(s, k, KMajorOperand<QueryTile>(Types::q(state.stage())));
        k_q.commit();
      }
      wait<1>(dk, ds);
      {
        WgmmaBatch v_dout;
        v_dout.template multiply<dtype>(dp, v,
                                        KMajorOperand<QueryTile>(Types::dout(state.stage())));
        v_dout.commit();
      }
      wait<1>(s);
      if (left == 0) break;
    }
    wait<0>(dp);
  }
  epilogue_dk_dv<Types>(a, warpgroup, dk, dv);
}

template <KernelSpec spec>
void main_dq_in_producer(const BackwardWarpSpecializedArguments& a) {
  using Types = DqInProducerTypes<spec>;
  constexpr BackwardRoles tile = Types::tile;
  {
    const KeyBlock<Types> own(a.backward);
    if (!own.exist()) return exit_without_keys(a.backward, backward_work_tile(spec).reports);
    store_block_info(a.backward, own);
  }
  if (arch::thread() == 0) {
    Types::key_pipeline().init(1);
    Types::query_pipeline().init(1, tile_producers);
    Types::gradient_pipeline().init(1);
    arch::fence_mbarrier_init();
  }
  arch::barrier();
  const int warpgroup = arch::warpgroup();
  if (warpgroup == 0) {
    arch::reg_dealloc<tile.dq_registers>();
    producer_and_dq_warpgroup<spec>(a);
  } else {
    arch::reg_alloc<tile.consumer_registers>();
    dk_dv_consumer_warpgroup<spec>(a.backward, warpgroup - 1);
  }
}

template <KernelSpec spec>
void backward_warp_specialized(const BackwardWarpSpecializedArguments& a) {
  if constexpr (has_roles(spec)) {
    main_dq_in_producer<spec>(a);
  } else {
    main_two_consumers<spec>(a);
  }
}

}  // namespace rocflash::kernel
