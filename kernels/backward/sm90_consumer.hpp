// Main backward kernel on Hopper, warp-specialized. A workgroup owns a block of keys of one KV
// head. One producer warpgroup loads query tiles of the GQA group with TMA (sm90_producer.hpp); two
// consumer warpgroups compute 64 keys each:
//
//   Sᵀ = K·Qᵀ   dPᵀ = V·dOᵀ     keys by queries, in registers
//   P, dS                       rounded: A operands of the next two products, in registers
//   dV += Pᵀ·dO   dK += dSᵀ·Q   keys by columns, accumulators in registers
//   dQ = dS·K                   over the keys of both consumers, so dS goes through shared memory.
//                               Each consumer computes half of dQ, and TMA reduce-add adds it to
//                               the f32 accumulator (dq_accumulator.hpp), atomic or ordered
//                               (dq_ordered.hpp).
//
// WGMMAs are always in flight. In an iteration
//
//   P is computed              during dP, and dK of the previous tile
//   dS is computed             during dV
//   the other dS arrives       during S of the next tile
//   dQ is stored               during dK and the next dP
//
// Shared-memory bandwidth is the limit: per tile of 64 queries and 128 keys of 128 columns, 3200
// clocks at 128 bytes each, compared with 2560 of the WGMMAs. Register pressure is next: 208 of a
// thread's 240 registers hold accumulators and operands, so values that can be recomputed are not
// kept over an iteration.
//
// Up to 64 columns the producer computes dQ: sm90_warp_specialized.hpp.
#pragma once

#include "arch/arch.hpp"
#include "attention/non_finite_rows.hpp"
#include "attention/online_softmax.hpp"
#include "backward/exact_recompute.hpp"
#include "backward/sm90_producer.hpp"
#include "tile/quads.hpp"
#include "tile/sm90.hpp"
#include "tile/static_for.hpp"

namespace rocflash::kernel {

// Named barrier of the consumer warpgroups.
inline constexpr arch::NamedBarrier consumers_barrier{1};
template <class Types>
void consumer_barrier() {
  arch::barrier_sync(consumers_barrier, Types::computing_threads);
}

// Rows of a tile from `rows` on belong to another sequence and need not be finite: the consumers
// clear them. Most tiles have none.
template <class Types, class Tile>
void clear_out_of_bounds_rows(SharedAddress tile, std::int32_t rows) {
  if (rows >= Tile::rows) return;
  clear_rows<Tile>(tile, rows, arch::opaque_thread() - arch::warpgroup_size,
                   Types::computing_threads);
  consumer_barrier<Types>();
}

// Replaces the scores of queries that do not attend to the key of their row with 0.
template <class Types>
void apply_query_mask(typename Types::Scores& scores ROCFLASH_ASYNC_IDLE, int first_row, int lane,
                      std::int32_t first_query) {
  using Scores = typename Types::Scores;
  ROCFLASH_UNROLL
  for (int i = 0; i < Scores::lane_rows; ++i) {
    const Words2 attending = arch::load_shared8(Types::attending(first_row + Scores::row(lane, i)));
    const auto begin =
        static_cast<std::int32_t>(attending.x) - first_query - Scores::lane_column(lane);
    ROCFLASH_UNROLL
    for (int n = 0; n < Scores::lane_columns; ++n) {
      const bool attends_to = static_cast<std::uint32_t>(Scores::column(n) - begin) < attending.y;
      scores.at(i, n) = attends_to ? scores.at(i, n) : 0.0f;
    }
  }
}

// The statistics of a lane's columns n and n + 1.
template <class Scores>
Float2 load_pair(SharedAddress numbers, int lane, int n) {
  return __builtin_bit_cast(
      Float2,
      arch::load_shared8(numbers + static_cast<std::uint32_t>(
                                       4 * (Scores::lane_column(lane) + Scores::column(n)))));
}

// P = exp2(S · scale_log2 − lse), in place.
template <class Scores>
void exp2_minus_lse(Scores& s ROCFLASH_ASYNC_IDLE, SharedAddress minus_lse, int lane, float unit) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Scores::lane_columns; n += 2) {
    const Float2 base = load_pair<Scores>(minus_lse, lane, n);
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::lane_rows; ++i) {
      s.at(i, n) = arch::exp2(__builtin_fmaf(s.at(i, n), unit, base.x));
      s.at(i, n + 1) = arch::exp2(__builtin_fmaf(s.at(i, n + 1), unit, base.y));
    }
  }
}

// dS = P (dP − delta), in place of dP.
template <class Scores>
void compute_ds(const Scores& p ROCFLASH_ASYNC_IDLE, Scores& dp ROCFLASH_ASYNC_IDLE,
                SharedAddress delta, int lane) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Scores::lane_columns; n += 2) {
    const Float2 mean = load_pair<Scores>(delta, lane, n);
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::lane_rows; ++i) {
      dp.at(i, n) = p.at(i, n) * (dp.at(i, n) - mean.x);
      dp.at(i, n + 1) = p.at(i, n + 1) * (dp.at(i, n + 1) - mean.y);
    }
  }
}

// Stores a warp's rows of dSᵀ to shared memory.
template <class Types>
void store_ds(const typename Types::Weights& ds ROCFLASH_ASYNC_IDLE, SharedAddress tile,
              int first_row, int lane) {
  using Tile = typename Types::ScoreTile;
  const int row = first_row + lane % 16, column = lane / 16 * 8;
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::Weights::steps; ++n)
    arch::stmatrix_x4(tile + static_cast<std::uint32_t>(Tile::offset(row, column + wgmma_k * n)),
                      ds.words(n));
}

// Adds a warp's 16 queries of dQ to the accumulator with TMA reduce-add. `stage` is the warp's
// staging buffer. One lane calls before() and after() around the reduce-add.
template <class Types, class Before, class After>
void reduce_add_dq(const typename Types::DqTile& dq ROCFLASH_ASYNC_IDLE, SharedAddress stage,
                   int lane, float* to, bool in_bounds, Before before, After after) {
  if (lane == 0) arch::tma_store_wait_read<0>();
  arch::syncwarp();
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::strips; ++n)
    arch::store_shared(
        stage + static_cast<std::uint32_t>(4 * DqAccumulator::block_floats * n + 16 * lane),
        __builtin_bit_cast(Words4, Float4{dq.at(0, 2 * n), dq.at(0, 2 * n + 1), dq.at(1, 2 * n),
                                          dq.at(1, 2 * n + 1)}));
  arch::fence_proxy_async();
  arch::syncwarp();
  if (lane == 0) {
    before();
    if (in_bounds) arch::tma_reduce_add(to, stage, static_cast<int>(Types::warp_sums));
    arch::tma_store_commit();
    after();
  }
}
template <class Types>
void reduce_add_dq(const typename Types::DqTile& dq ROCFLASH_ASYNC_IDLE, SharedAddress stage,
                   int lane, float* to, bool in_bounds) {
  reduce_add_dq<Types>(dq, stage, lane, to, in_bounds, [] {}, [] {});
}

// Stores the accumulator of dK or dV. Returns the rows that are not finite, and all where products
// may overflow.
template <class Types, bool is_dk>
NonFiniteRows store_key_gradient(const BackwardArguments& a, const KeyBlock<Types>& own,
                                 int first_row,
                                 const typename Types::DkDvTile& sums ROCFLASH_ASYNC_IDLE) {
  using Sums = typename Types::DkDvTile;
  constexpr DType dtype = Types::dtype;
  const Rows& to = is_dk ? a.tensors.dk : a.tensors.dv;
  NonFiniteRows non_finite;
  if (!to) return non_finite;
  const float factor = is_dk ? a.problem.scale : 1.0f;
  const int lane = arch::lane();
  ROCFLASH_UNROLL
  for (int i = 0; i < Sums::lane_rows; ++i) {
    const std::int32_t key = first_row + Sums::row(lane, i);
    const bool exists = key < own.rows();
    std::byte* const row = row_address<dtype>(to, own.sequence.batch,
                                              own.sequence.k_row + own.begin + key, own.item.head);
    const float probe = store_row<dtype>(sums, i, factor, true, row, exists, to.columns);
    non_finite.add(i, exists && (probe != 0 || products_overflow(a.problem)));
  }
  return non_finite;
}

// Thread indices within a consumer warpgroup. Computed again in each iteration, which has no
// registers to keep them.
struct ConsumerThread {
  std::uint32_t number =
      arch::opaque_vgpr(static_cast<std::uint32_t>(arch::thread())) % arch::warpgroup_size;
  int lane = static_cast<int>(number % arch::wave_size),
      warp = static_cast<int>(number / arch::wave_size);

  int first_row(int warpgroup) const {
    return warpgroup_rows * warpgroup + 16 * warp;
  }  // of the warp's keys
  bool is_elected() const { return number == 0; }
};

// Epilogue: stores dK and dV, and recomputes non-finite rows.
template <class Types>
void epilogue_dk_dv(const BackwardArguments& a, int warpgroup,
                    const typename Types::DkDvTile& dk ROCFLASH_ASYNC_IDLE,
                    const typename Types::DkDvTile& dv ROCFLASH_ASYNC_IDLE) {
  // Computed again, so that the main loop does not keep it.
  const KeyBlock<Types> own(a, arch::opaque_sgpr(arch::workgroup_id()));
  const int first_row = ConsumerThread().first_row(warpgroup);
  NonFiniteRows non_finite = store_key_gradient<Types, true>(a, own, first_row, dk);
  if (arch::lane() == 0) arch::tma_store_wait<0>();
  arch::syncwarp();
  if constexpr (Types::consumers_add_dq)
    arch::barrier_arrive(dq_reduced, Types::computing_threads + arch::wave_size);
  NonFiniteRows non_finite_dv = store_key_gradient<Types, false>(a, own, first_row, dv);
  arch::syncwarp();
  bool is_dk = true;
  while (non_finite.any() || non_finite_dv.any()) {
    if (!non_finite.any()) {
      non_finite = non_finite_dv;
      non_finite_dv = {};
      is_dk = false;
    }
    const auto row = non_finite.take();
    exact_dk_dv<Types::dtype>(
        a, own.sequence, own.item.head,
        own.begin + first_row + Types::DkDvTile::row(row.first_lane, row.which), is_dk, !is_dk);
  }
}

// The named barriers that signal the other consumer's dS: two per consumer, alternating.
inline arch::NamedBarrier ds_stored(std::int32_t left, int warpgroup) {
  return arch::NamedBarrier{2} + (2 * (left % 2) + warpgroup);
}

// P = exp2(S − lse) of the tile in `stage`, masked.
template <class Types, class Info>
void compute_p(const BackwardArguments& a, typename Types::Scores& s ROCFLASH_ASYNC_IDLE,
               const Info& info, int stage, int warpgroup) {
  const ConsumerThread thread;
  exp2_minus_lse(s, Types::minus_lse(stage), thread.lane,
                 a.problem.scale * Log2Domain::from_natural);
  if (info[TileInfo::is_edge] != 0)
    apply_query_mask<Types>(s, thread.first_row(warpgroup), thread.lane, info[TileInfo::query]);
}

// The consumer warpgroups; `warpgroup` counts from 0.
template <KernelSpec spec>
void consumer_warpgroup(const BackwardArguments& a, int warpgroup) {
  using Types = WarpSpecializedTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  using ScoreTile = typename Types::ScoreTile;
  constexpr DType dtype = spec.dtype;
  constexpr int bucket = spec.bucket;
  const auto q_pipeline = Types::q_pipeline();
  const auto dout_pipeline = Types::dout_pipeline(),
             statistics_pipeline = Types::statistics_pipeline();

  typename Types::DkDvTile dk, dv;
  dk.clear();
  dv.clear();
  Types::key_pipeline().consumer_wait(ConsumerState<1>());
  clear_out_of_bounds_rows<Types, KeyTile>(Types::k(), Types::block()[WorkTileInfo::keys]);
  clear_out_of_bounds_rows<Types, KeyTile>(Types::v(), Types::block()[WorkTileInfo::keys]);

  if (Types::block()[WorkTileInfo::count] > 0) {
    TilePipelineStates<Types::q_stages, Types::stages> state;
    typename Types::Scores s, dp;  // dS in place of dP
    typename Types::DqTile dq;
    typename Types::Weights p, ds;
    // Wait for the tile at `state`.
    const auto rows = [&] { return Types::tile_info(state.rest().stage())[TileInfo::rows]; };
    const auto wait_for_q = [&] {
      statistics_pipeline.consumer_wait(state.rest());
      q_pipeline.consumer_wait(state.q());
      clear_out_of_bounds_rows<Types, QueryTile>(Types::q(state.q().stage()), rows());
    };
    const auto wait_for_dout = [&] {
      dout_pipeline.consumer_wait(state.rest());
      clear_out_of_bounds_rows<Types, QueryTile>(Types::dout(state.rest().stage()), rows());
    };
    {
      wait_for_q();
      WgmmaBatch k_q(dk);
      k_q.template multiply<dtype, bucket>(
          s, KMajorOperand<KeyTile>(Types::k(), warpgroup_rows * warpgroup),
          KMajorOperand<QueryTile>(Types::q(0)));
      k_q.commit();
      wait_for_dout();
      WgmmaBatch v_dout;
      v_dout.template multiply<dtype, bucket>(
          dp, KMajorOperand<KeyTile>(Types::v(), warpgroup_rows * warpgroup),
          KMajorOperand<QueryTile>(Types::dout(0)));
      v_dout.commit();
      wait<1>(s);
      assume_in_flight(dk);
      assume_in_flight(ds);
    }

#pragma clang loop unroll(disable)
    while (true) {
      const ConsumerState<Types::stages> now = state.rest();
      const int stage = now.stage(), q_stage = state.q().stage();
      const auto info = Types::tile_info(stage);
      compute_p<Types>(a, s, info, stage, warpgroup);

      wait<0>(dp);
      wait<0>(dk, ds);
      const std::int32_t left = info[TileInfo::left];
      const SharedAddress ds_tile = Types::ds(static_cast<std::uint32_t>(left) % 2);
      const int own = arch::opaque_sgpr(warpgroup);
      const ConsumerThread thread;
      const int first_row = thread.first_row(own), lane = thread.lane;
      const bool elected = thread.is_elected();
      // The q stage of the previous tile is free.
      if (elected && info[TileInfo::is_first] == 0) q_pipeline.consumer_release(state.q().before());
      p.template convert<dtype>(s);
      {
        WgmmaBatch p_dout(p);
        p_dout.template add<dtype>(dv, p, MnMajorOperand<QueryTile>(Types::dout(stage)));
        p_dout.commit();
      }
      compute_ds(s, dp, Types::delta(stage), lane);
      if (info[TileInfo::is_edge] != 0)
        apply_query_mask<Types>(dp, first_row, lane, info[TileInfo::query]);
      ds.template convert<dtype>(dp);
      store_ds<Types>(ds, ds_tile, first_row, lane);
      arch::fence_proxy_async();
      float* const sums = info.floats(TileInfo::sums);
      const std::int32_t rows_left = info[TileInfo::rows];
      arch::barrier_arrive(ds_stored(left, 1 - own), Types::computing_threads);
      wait<0>(dv, p);
      if (elected) dout_pipeline.consumer_release(now);
      state.advance();
      if (left > 0) wait_for_q();
      // After the last tile the contents of the stage are arbitrary; the result is not used.
      {
        WgmmaBatch k_q(ds);
        k_q.template multiply<dtype, bucket>(
            s, KMajorOperand<KeyTile>(Types::k(), warpgroup_rows * own),
            KMajorOperand<QueryTile>(Types::q(state.q().stage())));
        k_q.commit();
      }
      arch::barrier_sync(ds_stored(left, own), Types::computing_threads);
      if (elected && !DqOrder::is_ordered(a)) statistics_pipeline.consumer_release(now);
      {
        WgmmaBatch ds_k;
        ds_k.template multiply<dtype, Types::keys>(
            dq, MnMajorOperand<ScoreTile>(ds_tile),
            MnMajorOperand<KeyTile>(Types::k(), Types::query_columns * own));
        ds_k.commit();
        WgmmaBatch ds_q;
        ds_q.template add<dtype>(dk, ds, MnMajorOperand<QueryTile>(Types::q(q_stage)));
        ds_q.commit();
        assume_in_flight(dk);
      }
      bool ready = !DqOrder::is_ordered(a) || lane != 0;
      if (!ready) ready = is_ready(info);
      wait<1>(dq);
      reduce_add_dq<Types>(
          dq, Types::dq(own, thread.warp), lane,
          sums + (thread.warp * (bucket / DqAccumulator::columns) + own * Types::strips) *
                     DqAccumulator::block_floats,
          DqAccumulator::rows * thread.warp < rows_left,
          [&] {
            if (DqOrder::is_ordered(a)) wait_until_ready(info, ready);
          },
          [&] {
            if (!DqOrder::is_ordered(a)) return;
            // Wait for the reduce-add of the previous tile, or for all.
            if (left > 0) {
              arch::tma_store_wait<1>();
            } else {
              arch::tma_store_wait<0>();
            }
            statistics_pipeline.consumer_release(now);
          });
      if (left > 0) wait_for_dout();
      {
        WgmmaBatch v_dout;
        v_dout.template multiply<dtype, bucket>(
            dp, KMajorOperand<KeyTile>(Types::v(), warpgroup_rows * own),
            KMajorOperand<QueryTile>(Types::dout(state.rest().stage())));
        v_dout.commit();
      }
      wait<2>(s);
      if (left == 0) break;
    }
    wait<0>(dp);
    wait<0>(dk, ds);
  }
  epilogue_dk_dv<Types>(a, warpgroup, dk, dv);
}

template <KernelSpec spec>
void main_two_consumers(const BackwardWarpSpecializedArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  constexpr BackwardWarpgroups tile = Types::tile;
  {
    const KeyBlock<Types> own(a.backward);
    if (!own.exist()) return exit_without_keys(a.backward, backward_work_tile(spec).reports);
    store_block_info(a.backward, own);
  }
  if (arch::thread() == 0) {
    Types::key_pipeline().init(tile.consumers);
    Types::q_pipeline().init(tile.consumers);
    Types::dout_pipeline().init(tile.consumers);
    // With ordered accumulation each warp releases the stage.
    Types::statistics_pipeline().init((DqOrder::is_ordered(a.backward) ? 4 : 1) * tile.consumers,
                                      arch::wave_size);
    arch::fence_mbarrier_init();
  }
  arch::barrier();
  const int warpgroup = arch::warpgroup();
  if (warpgroup == 0) {
    producer_warpgroup<spec>(a);
  } else {
    arch::reg_alloc<tile.consumer_registers>();
    consumer_warpgroup<spec>(a.backward, warpgroup - 1);
  }
}

}  // namespace rocflash::kernel
