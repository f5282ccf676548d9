// Warp-specialized backward on Hopper above 128 columns. The accumulators of dK and dV of 64 keys
// take most registers of a warpgroup each, so three consumer warpgroups share the keys of a
// workgroup. The producer loads query tiles (sm90_producer.hpp).
//
//   dV consumer   Sᵀ = K·Qᵀ     P, rounded       dV += Pᵀ·dO
//   dK consumer   dPᵀ = V·dOᵀ   dS from P        dK += dSᵀ·Q
//   dQ consumer   dQ = dS·K     64 columns at a time, TMA reduce-add to the f32 accumulator
//                               (dq_accumulator.hpp), atomic or ordered (dq_ordered.hpp)
//
// P and dS are A operands in registers. P passes to the dK consumer through shared memory, thread
// by thread: both have the same fragment layout. dS goes there as dQ's operand. Each consumer is up
// to a tile ahead of the next, so that its arithmetic overlaps with WGMMAs.
//
// dS is computed from rounded P, as naive attention in the same dtype does: P in f32 would not fit.
//
// Per tile of 64 queries and 64 keys of 256 columns: WGMMA 2560 cycles; shared memory 3800, at 128
// bytes each: S and dP 512 each, dV and dK 256 each, dQ 512 and its reduce-add 1024, TMA loads 512,
// P and dS 192.
#pragma once

#include "backward/sm90_consumer.hpp"

namespace rocflash::kernel {

// Named barriers besides consumer_barrier: dS stored and dS read, of two warpgroups; and one for
// each warpgroup alone.
inline constexpr arch::NamedBarrier ds_ready{2}, ds_read{3}, dv_warpgroup{4}, dk_warpgroup{5};
inline constexpr int two_warpgroups = 2 * arch::warpgroup_size;

// One warpgroup clears the rows of a tile from `rows` on.
template <class Tile>
void clear_warpgroup_rows(SharedAddress tile, std::int32_t rows, arch::NamedBarrier barrier) {
  if (rows >= Tile::rows) return;
  clear_rows<Tile>(tile, rows, static_cast<int>(ConsumerThread().number), arch::warpgroup_size);
  arch::barrier_sync(barrier, arch::warpgroup_size);
}

template <class Types>
void wait_for_keys() {
  using KeyTile = typename Types::KeyTile;
  Types::key_pipeline().consumer_wait(ConsumerState<1>());
  clear_out_of_bounds_rows<Types, KeyTile>(Types::k(), Types::block()[WorkTileInfo::keys]);
  clear_out_of_bounds_rows<Types, KeyTile>(Types::v(), Types::block()[WorkTileInfo::keys]);
}

// Shared memory through which a thread's P of a step passes from the dV to the dK consumer.
template <class Types>
SharedAddress p_slot(std::uint32_t thread, int step) {
  return Types::ds(1) + 16 * (thread + static_cast<std::uint32_t>(step * arch::warpgroup_size));
}

// P from the dV consumer, loaded while dP is computed.
template <class Types>
struct ReceivedP {
  using Scores = typename Types::Scores;
  static constexpr int steps = Types::Weights::steps;
  Words4 weights[steps];

  ReceivedP(const ConsumerThread& thread, const ConsumerState<1>& state) {
    Types::weights_pipeline().consumer_wait(state);
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n) weights[n] = arch::load_shared(p_slot<Types>(thread.number, n));
    Types::weights_pipeline().consumer_release(state);  // each thread arrives for its own reads
  }
  // dS = P (dP − delta), in place of dP.
  void compute_ds(Scores& dp ROCFLASH_ASYNC_IDLE, SharedAddress delta, int lane) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < Scores::lane_columns; n += 2) {
      const Float2 mean = load_pair<Scores>(delta, lane, n);
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::lane_rows; ++i) {
        const std::uint32_t two = weights[n / 4][n % 4 + i];
        const auto low = static_cast<std::uint16_t>(two),
                   high = static_cast<std::uint16_t>(two >> 16);
        dp.at(i, n) = widen<Types::dtype>(low) * (dp.at(i, n) - mean.x);
        dp.at(i, n + 1) = widen<Types::dtype>(high) * (dp.at(i, n + 1) - mean.y);
      }
    }
  }
};

// Pipeline states of a consumer's loop over tiles.
template <class Types>
struct TileLoop {
  TilePipelineStates<Types::q_stages, Types::stages> state;

  auto tile_info() const { return Types::tile_info(state.rest().stage()); }
  SharedAddress q() const { return Types::q(state.q().stage()); }
  SharedAddress dout() const { return Types::dout(state.rest().stage()); }
  void wait_for_q() const { Types::q_pipeline().consumer_wait(state.q()); }
  void wait_for_dout() const { Types::dout_pipeline().consumer_wait(state.rest()); }
  void wait_for_statistics() const { Types::statistics_pipeline().consumer_wait(state.rest()); }
  // Each thread arrives for its own reads: no barrier orders those of the others.
  void release_statistics() const { Types::statistics_pipeline().consumer_release(state.rest()); }
};

// dV or dK += P or dS times a query tile, two WGMMAs each.
template <class Types>
void add_to_dk_or_dv(WgmmaBatch& products ROCFLASH_ASYNC_IDLE,
                     typename Types::DkDvTile& sums ROCFLASH_ASYNC_BEGIN,
                     typename Types::Weights& left ROCFLASH_ASYNC_BEGIN, SharedAddress tile) {
  constexpr DType dtype = Types::dtype;
  constexpr int half = 128;
  using Lines = MnMajorOperand<typename Types::QueryTile>;
  products.template add_columns<dtype, 0, half>(sums, left, Lines(tile));
  products.template add_columns<dtype, half, Types::bucket - half>(sums, left, Lines(tile, half));
}

// Epilogue of one consumer: stores its gradient, and recomputes non-finite rows.
template <class Types, bool is_dk>
void epilogue_one_gradient(const BackwardArguments& a,
                           const typename Types::DkDvTile& sums ROCFLASH_ASYNC_IDLE) {
  const KeyBlock<Types> own(a, arch::opaque_sgpr(arch::workgroup_id()));
  const int first_row = ConsumerThread().first_row(0);
  NonFiniteRows non_finite = store_key_gradient<Types, is_dk>(a, own, first_row, sums);
  while (non_finite.any()) {
    const auto row = non_finite.take();
    exact_dk_dv<Types::dtype>(
        a, own.sequence, own.item.head,
        own.begin + first_row + Types::DkDvTile::row(row.first_lane, row.which), is_dk, !is_dk);
  }
}

// S, P and dV.
template <KernelSpec spec>
void dv_consumer_warpgroup(const BackwardArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  constexpr DType dtype = spec.dtype;

  typename Types::DkDvTile dv;
  dv.clear();
  if (Types::block()[WorkTileInfo::count] > 0) {
    TileLoop<Types> loop;
    ProducerState<1> passing;
    typename Types::Scores s;
    typename Types::Weights p;
    const auto issue_s = [&] {
      WgmmaBatch k_q;
      k_q.template multiply<dtype, spec.bucket>(s, KMajorOperand<KeyTile>(Types::k()),
                                                KMajorOperand<QueryTile>(loop.q()));
      k_q.commit();
    };
    // P of the tile whose S is complete.
    const auto exp2_scores = [&] {
      const ConsumerThread thread;
      const auto info = loop.tile_info();
      if (thread.is_elected()) Types::q_pipeline().consumer_release(loop.state.q());
      exp2_minus_lse(s, Types::minus_lse(loop.state.rest().stage()), thread.lane,
                     a.problem.scale * Log2Domain::from_natural);
      if (info[TileInfo::is_edge] != 0)
        apply_query_mask<Types>(s, thread.first_row(0), thread.lane, info[TileInfo::query]);
    };
    const auto send_p = [&] {
      p.template convert<dtype>(s);
      Types::weights_pipeline().producer_acquire(passing);
      const ConsumerThread thread;
      ROCFLASH_UNROLL
      for (int n = 0; n < Types::Weights::steps; ++n)
        arch::store_shared(p_slot<Types>(thread.number, n), p.words(n));
      // Each thread arrives for its own stores.
      Types::weights_pipeline().producer_expect_tx(passing, 0);
      passing.advance();
    };
    loop.wait_for_statistics();
    loop.wait_for_q();
    issue_s();
    wait<0>(s);
    exp2_scores();
    send_p();

#pragma clang loop unroll(disable)
    while (true) {
      const auto info = loop.tile_info();
      const std::int32_t left = info[TileInfo::left], rows = info[TileInfo::rows];
      const TileLoop<Types> now = loop;
      loop.state.advance();
      if (left > 0) loop.wait_for_q();
      // After the last tile the contents of the stage are arbitrary; the result is not used.
      issue_s();
      now.wait_for_dout();
      // The dK consumer may read these rows at the same time: its results for them are masked.
      clear_warpgroup_rows<QueryTile>(now.dout(), rows, dv_warpgroup);
      WgmmaBatch p_dout(p);
      add_to_dk_or_dv<Types>(p_dout, dv, p, now.dout());
      p_dout.commit();
      now.release_statistics();
      wait<1>(s);
      if (left == 0) break;
      loop.wait_for_statistics();
      exp2_scores();
      wait<0>(dv, p);
      if (ConsumerThread().is_elected()) Types::dout_pipeline().consumer_release(now.state.rest());
      send_p();
    }
    wait<0>(dv, p);
  }
  epilogue_one_gradient<Types, false>(a, dv);
}

// dP, dS and dK.
template <KernelSpec spec>
void dk_consumer_warpgroup(const BackwardArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  constexpr DType dtype = spec.dtype;

  typename Types::DkDvTile dk;
  dk.clear();
  if (Types::block()[WorkTileInfo::count] > 0) {
    TileLoop<Types> loop;
    ConsumerState<1> passing;
    typename Types::Scores dp;  // dS in place of dP
    typename Types::Weights ds;
    const auto issue_dp = [&] {
      WgmmaBatch v_dout;
      v_dout.template multiply<dtype, spec.bucket>(dp, KMajorOperand<KeyTile>(Types::v()),
                                                   KMajorOperand<QueryTile>(loop.dout()));
      v_dout.commit();
    };
    loop.wait_for_dout();
    issue_dp();

#pragma clang loop unroll(disable)
    while (true) {
      const TileLoop<Types> now = loop;
      const auto info = now.tile_info();
      now.wait_for_statistics();
      const ConsumerThread thread;
      const ReceivedP<Types> passed(thread, passing);
      passing.advance();
      wait<0>(dp);
      if (thread.is_elected()) Types::dout_pipeline().consumer_release(now.state.rest());
      passed.compute_ds(dp, Types::delta(now.state.rest().stage()), thread.lane);
      if (info[TileInfo::is_edge] != 0)
        apply_query_mask<Types>(dp, thread.first_row(0), thread.lane, info[TileInfo::query]);
      const std::int32_t left = info[TileInfo::left], rows = info[TileInfo::rows];
      now.release_statistics();
      clear_warpgroup_rows<QueryTile>(now.q(), rows, dk_warpgroup);
      ds.template convert<dtype>(dp);
      arch::barrier_sync(ds_read, two_warpgroups);
      store_ds<Types>(ds, Types::ds(0), thread.first_row(0), thread.lane);
      arch::fence_proxy_async();
      arch::barrier_arrive(ds_ready, two_warpgroups);
      WgmmaBatch ds_q(ds);
      add_to_dk_or_dv<Types>(ds_q, dk, ds, now.q());
      ds_q.commit();
      loop.state.advance();
      if (left > 0) loop.wait_for_dout();
      // After the last tile the contents of the stage are arbitrary; the result is not used.
      issue_dp();
      wait<1>(dk, ds);
      if (ConsumerThread().is_elected()) Types::q_pipeline().consumer_release(now.state.q());
      if (left == 0) break;
    }
    wait<0>(dp);
    arch::barrier_sync(ds_read, two_warpgroups);  // dS of the last tile has been read
  }
  epilogue_one_gradient<Types, true>(a, dk);
}

// dQ. With ordered accumulation each warp reads the counter before dS arrives, and signals when all
// columns are added; a producer warp releases the counter.
template <KernelSpec spec>
void dq_consumer_warpgroup(const BackwardArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using ScoreTile = typename Types::ScoreTile;
  constexpr int columns = Types::query_columns, parts = spec.bucket / columns;
  if (Types::block()[WorkTileInfo::count] == 0) return signal_dq_done(a);
  ConsumerState<Types::stages> state;
  ProducerState<1> added;
  typename Types::DqTile dq;
  arch::barrier_arrive(ds_read, two_warpgroups);  // the dS buffer is initially free
#pragma clang loop unroll(disable)
  while (true) {
    Types::statistics_pipeline().consumer_wait(state);
    const auto info = Types::tile_info(state.stage());
    const std::int32_t left = info[TileInfo::left];
    const ConsumerThread thread;
    const int first_query = 16 * thread.warp;
    const bool in_bounds = first_query < info[TileInfo::rows];
    float* const sums = info.floats(TileInfo::sums) + first_query * spec.bucket;
    const bool waits_for_order = thread.lane == 0 && DqOrder::is_ordered(a);
    const OrderedSlot slot(info);
    // Each thread arrives for its own reads: while it waits for the order, others may be a tile
    // ahead.
    Types::statistics_pipeline().consumer_release(state);
    state.advance();
    bool ready = true;
    if (waits_for_order) ready = slot.ready();
    arch::barrier_sync(ds_ready, two_warpgroups);
    static_for<parts>([&](auto part) {
      constexpr int column = part.value * columns;
      WgmmaBatch ds_k;
      ds_k.template multiply<spec.dtype, Types::keys>(dq, MnMajorOperand<ScoreTile>(Types::ds(0)),
                                                      MnMajorOperand<KeyTile>(Types::k(), column));
      ds_k.commit();
      constexpr bool is_first = part.value == 0, is_last = part.value + 1 == parts;
      wait<0>(dq);
      if constexpr (is_last) arch::barrier_arrive(ds_read, two_warpgroups);
      reduce_add_dq<Types>(
          dq, Types::dq(0, thread.warp), thread.lane, sums + column * DqAccumulator::rows,
          in_bounds,
          [&] {
            if (is_first && waits_for_order) wait_until_ready(slot, ready);
          },
          [&] {
            if (!is_last || !waits_for_order) return;
            arch::tma_store_wait<0>();
            Types::added_pipeline().producer_acquire_expect_tx(added, 0);
            added.advance();
          });
    });
    if (left == 0) break;
  }
  if (arch::lane() == 0) arch::tma_store_wait<0>();
  signal_dq_done(a);
}

template <KernelSpec spec>
void backward_warp_specialized_large(const BackwardWarpSpecializedArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  constexpr BackwardWarpgroups tile = Types::tile;
  {
    const KeyBlock<Types> own(a.backward);
    if (!own.exist()) return exit_without_keys(a.backward, backward_work_tile(spec).reports);
    store_block_info(a.backward, own);
  }
  if (arch::thread() == 0) {
    Types::key_pipeline().init(tile.consumers);
    // The dQ consumer reads neither q nor dout.
    Types::q_pipeline().init(tile.consumers - 1);
    Types::dout_pipeline().init(tile.consumers - 1);
    // Every consumer thread and every lane of the producer warp arrives.
    Types::statistics_pipeline().init(Types::computing_threads, arch::wave_size);
    Types::weights_pipeline().init(arch::warpgroup_size, arch::warpgroup_size);
    Types::added_pipeline().init(1, arch::warpgroup_size / arch::wave_size);
    arch::fence_mbarrier_init();
  }
  arch::barrier();
  const int warpgroup = arch::warpgroup();
  if (warpgroup == 0) {
    producer_warpgroup<spec>(a);
  } else if (warpgroup == 1) {
    arch::reg_alloc<tile.dv_registers>();
    wait_for_keys<Types>();
    dv_consumer_warpgroup<spec>(a.backward);
  } else if (warpgroup == 2) {
    arch::reg_alloc<tile.consumer_registers>();
    wait_for_keys<Types>();
    dk_consumer_warpgroup<spec>(a.backward);
  } else {
    arch::reg_dealloc<tile.dq_registers>();
    wait_for_keys<Types>();
    dq_consumer_warpgroup<spec>(a.backward);
  }
}

}  // namespace rocflash::kernel
