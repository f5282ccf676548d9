// Backward on Hopper, by workgroups that own a block of keys of one key head. One warpgroup has tiles of
// queries copied to shared memory, of all heads that share the keys (sm90_tiles.hpp); two compute, 64 keys
// each:
//
//   Sᵀ = K·Qᵀ   dPᵀ = V·dOᵀ     keys by queries, in registers
//   P, dS                       from those, rounded: left operands of the next two as they are
//   dV += Pᵀ·dO   dK += dSᵀ·Q   keys by columns, in registers all the time
//   dQ = dS·K                   over the keys of both warpgroups, so dS goes through shared memory. Each
//                               warpgroup has half of dQ and has it added to f32 sums in global memory
//                               (dq_sums.hpp) by copies that add: in any order, or in turns (turns.hpp).
//
// Products are in flight all the time. In a turn of the loop
//
//   P is computed              under dP, and dK of the tile before
//   dS is computed             under dV
//   the other's dS is there    under S of the next tile
//   dQ leaves                  under dK, and dP follows
//
// What limits it is how fast shared memory is read: per tile of 64 queries and 128 keys of 128 columns, 3200
// clocks at 128 bytes each, beside 2560 of the products. Registers come next: 208 of a thread's 240 hold sums
// and operands, so nothing that can be asked for again is kept over a turn.
//
// Up to 64 columns registers leave room for another division of the work: sm90_narrow.hpp.
#pragma once

#include "arch/arch.hpp"
#include "attention/broken_rows.hpp"
#include "attention/softmax.hpp"
#include "backward/exact.hpp"
#include "backward/sm90_tiles.hpp"
#include "tile/quads.hpp"
#include "tile/sm90.hpp"
#include "tile/unrolled.hpp"

namespace rocflash::kernel {

// Named barrier of the warpgroups that compute.
template <class Types>
void meet() {
  arch::barrier(1, Types::computing_threads);
}

// Rows of a tile in shared memory from `rows` on belong to others, whose numbers need not be finite: they
// become 0. All warpgroups that compute, which meet behind it. Mostly there are none.
template <class Types, class Tile>
void clear_rows_behind(SharedAddress tile, std::int32_t rows) {
  if (rows >= Tile::rows) return;
  clear_rows<Tile>(tile, rows, arch::renewed_thread() - arch::warpgroup_size,
                   Types::computing_threads);
  meet<Types>();
}

// Puts 0 in the places of queries that do not see the key of their row, whatever is there.
template <class Types>
void hide_queries(typename Types::Scores& scores ROCFLASH_SETTLED, int first_row, int lane,
                  std::int32_t first_query) {
  using Scores = typename Types::Scores;
  ROCFLASH_UNROLL
  for (int i = 0; i < Scores::lane_rows; ++i) {
    const Words2 seeing = arch::load_shared8(Types::seeing(first_row + Scores::row(lane, i)));
    const auto begin =
        static_cast<std::int32_t>(seeing.x) - first_query - Scores::lane_column(lane);
    ROCFLASH_UNROLL
    for (int n = 0; n < Scores::lane_columns; ++n) {
      const bool sees = static_cast<std::uint32_t>(Scores::column(n) - begin) < seeing.y;
      scores.at(i, n) = sees ? scores.at(i, n) : 0.0f;
    }
  }
}

// The numbers of a lane's columns n and n + 1.
template <class Scores>
Float2 two_of(SharedAddress numbers, int lane, int n) {
  return __builtin_bit_cast(
      Float2,
      arch::load_shared8(numbers + static_cast<std::uint32_t>(
                                       4 * (Scores::lane_column(lane) + Scores::column(n)))));
}

// S becomes P.
template <class Scores>
void weigh(Scores& s ROCFLASH_SETTLED, SharedAddress minus_lse, int lane, float unit) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Scores::lane_columns; n += 2) {
    const Float2 base = two_of<Scores>(minus_lse, lane, n);
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::lane_rows; ++i) {
      s.at(i, n) = arch::exp2(__builtin_fmaf(s.at(i, n), unit, base.x));
      s.at(i, n + 1) = arch::exp2(__builtin_fmaf(s.at(i, n + 1), unit, base.y));
    }
  }
}

// dP becomes dS.
template <class Scores>
void differentiate(const Scores& p ROCFLASH_SETTLED, Scores& d ROCFLASH_SETTLED,
                   SharedAddress delta, int lane) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Scores::lane_columns; n += 2) {
    const Float2 mean = two_of<Scores>(delta, lane, n);
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::lane_rows; ++i) {
      d.at(i, n) = p.at(i, n) * (d.at(i, n) - mean.x);
      d.at(i, n + 1) = p.at(i, n + 1) * (d.at(i, n + 1) - mean.y);
    }
  }
}

// A warp's rows of dSᵀ to shared memory.
template <class Types>
void store_gradients(const typename Types::Weights& ds ROCFLASH_SETTLED, SharedAddress tile,
                     int first_row, int lane) {
  using Tile = typename Types::ScoreTile;
  const int row = first_row + lane % 16, column = lane / 16 * 8;
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::Weights::steps; ++n)
    arch::store_matrices(
        tile + static_cast<std::uint32_t>(Tile::offset(row, column + product_depth * n)),
        ds.words(n));
}

// A warp's 16 queries of dQ to the sums in global memory. `stage` is the warp's own shared memory. One lane calls
// before() and after() around the addition.
template <class Types, class Before, class After>
void add_queries(const typename Types::QuerySums& dq ROCFLASH_SETTLED, SharedAddress stage,
                 int lane, float* to, bool there, Before before, After after) {
  if (lane == 0) arch::wait_for_reads<0>();
  arch::wave_barrier();
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::strips; ++n)
    arch::store_shared(stage + static_cast<std::uint32_t>(4 * DqSums::block_floats * n + 16 * lane),
                       __builtin_bit_cast(Words4, Float4{dq.at(0, 2 * n), dq.at(0, 2 * n + 1),
                                                         dq.at(1, 2 * n), dq.at(1, 2 * n + 1)}));
  arch::publish_shared();
  arch::wave_barrier();
  if (lane == 0) {
    before();
    if (there) arch::add_floats(to, stage, static_cast<int>(Types::warp_sums));
    arch::commit_stores();
    after();
  }
}
template <class Types>
void add_queries(const typename Types::QuerySums& dq ROCFLASH_SETTLED, SharedAddress stage,
                 int lane, float* to, bool there) {
  add_queries<Types>(dq, stage, lane, to, there, [] {}, [] {});
}

// Sums of dk or dv as rows of the tensor. Returns those that are not finite, and all where products may
// overflow.
template <class Types, bool is_dk>
BrokenRows store_keys(const BackwardArguments& a, const OwnKeys<Types>& own, int first_row,
                      const typename Types::KeySums& sums ROCFLASH_SETTLED) {
  using Sums = typename Types::KeySums;
  constexpr DType dtype = Types::dtype;
  const Rows& to = is_dk ? a.tensors.dk : a.tensors.dv;
  BrokenRows broken;
  if (!to) return broken;
  const float factor = is_dk ? a.problem.scale : 1.0f;
  const int lane = arch::lane();
  ROCFLASH_UNROLL
  for (int i = 0; i < Sums::lane_rows; ++i) {
    const std::int32_t key = first_row + Sums::row(lane, i);
    const bool exists = key < own.rows();
    std::byte* const row = row_address<dtype>(to, own.sequence.batch,
                                              own.sequence.k_row + own.begin + key, own.item.head);
    const float probe = store_row<dtype>(sums, i, factor, true, row, exists, to.columns);
    broken.add(i, exists && (probe != 0 || products_overflow(a.problem)));
  }
  return broken;
}

// What a thread of the computing warpgroups has. Asked for again in each turn of the loop, which has no
// registers to keep it in.
struct GroupThread {
  std::uint32_t number =
      arch::renew(static_cast<std::uint32_t>(arch::thread())) % arch::warpgroup_size;
  int lane = static_cast<int>(number % arch::wave_size),
      warp = static_cast<int>(number / arch::wave_size);

  int first_row(int group) const { return group_rows * group + 16 * warp; }  // of the warp's keys
  bool reports() const { return number == 0; }
};

// The end: sums become rows, and rows that are not to be trusted are computed again.
template <class Types>
void finish_keys(const BackwardArguments& a, int group,
                 const typename Types::KeySums& dk ROCFLASH_SETTLED,
                 const typename Types::KeySums& dv ROCFLASH_SETTLED) {
  // Found out again, so that the loop need not keep it.
  const OwnKeys<Types> own(a, arch::renewed(arch::group()));
  const int first_row = GroupThread().first_row(group);
  BrokenRows broken = store_keys<Types, true>(a, own, first_row, dk);
  if (arch::lane() == 0) arch::wait_for_stores<0>();
  arch::wave_barrier();
  if constexpr (Types::keys_add)
    arch::reach_barrier(additions_done, Types::computing_threads + arch::wave_size);
  BrokenRows broken_dv = store_keys<Types, false>(a, own, first_row, dv);
  arch::wave_barrier();
  bool is_dk = true;
  while (broken.any() || broken_dv.any()) {
    if (!broken.any()) {
      broken = broken_dv;
      broken_dv = {};
      is_dk = false;
    }
    const auto row = broken.take();
    exact_dk_dv<Types::dtype>(
        a, own.sequence, own.item.head,
        own.begin + first_row + Types::KeySums::row(row.first_lane, row.which), is_dk, !is_dk);
  }
}

// The named barriers that say that the other warpgroup's dS is there: of each warpgroup two, by turns.
inline int gradients_there(std::int32_t left, int group) { return 2 + 2 * (left % 2) + group; }

// What a computing warpgroup does; they count from 0.
template <KernelSpec spec>
void compute_gradients(const BackwardArguments& a, int group) {
  using Types = KeyGroupsTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  using ScoreTile = typename Types::ScoreTile;
  constexpr DType dtype = spec.dtype;
  constexpr int bucket = spec.bucket;
  const auto q_ring = Types::q_ring();
  const auto dout_ring = Types::dout_ring(), statistics_ring = Types::statistics_ring();

  typename Types::KeySums dk, dv;
  dk.clear();
  dv.clear();
  Types::key_ring().wait(DrainPlace<1>());
  clear_rows_behind<Types, KeyTile>(Types::k(), Types::block()[BlockOrder::keys]);
  clear_rows_behind<Types, KeyTile>(Types::v(), Types::block()[BlockOrder::keys]);

  if (Types::block()[BlockOrder::count] > 0) {
    TilePlaces<Types::q_stages, Types::stages> place;
    typename Types::Scores s, d;
    typename Types::QuerySums dq;
    typename Types::Weights p, ds;
    // Wait for the tile that `place` is at.
    const auto rows = [&] { return Types::order(place.rest().stage())[TileOrder::rows]; };
    const auto wait_for_queries = [&] {
      statistics_ring.wait(place.rest());
      q_ring.wait(place.q());
      clear_rows_behind<Types, QueryTile>(Types::q(place.q().stage()), rows());
    };
    const auto wait_for_values = [&] {
      dout_ring.wait(place.rest());
      clear_rows_behind<Types, QueryTile>(Types::dout(place.rest().stage()), rows());
    };
    {
      wait_for_queries();
      Products scores(dk);
      scores.template multiply<dtype, bucket>(s, RowLines<KeyTile>(Types::k(), group_rows * group),
                                              RowLines<QueryTile>(Types::q(0)));
      scores.commit();
      wait_for_values();
      Products values;
      values.template multiply<dtype, bucket>(d, RowLines<KeyTile>(Types::v(), group_rows * group),
                                              RowLines<QueryTile>(Types::dout(0)));
      values.commit();
      wait<1>(s);
      expect(dk);
      expect(ds);
    }

#pragma clang loop unroll(disable)
    while (true) {
      const DrainPlace<Types::stages> now = place.rest();
      const int stage = now.stage(), q_stage = place.q().stage();
      const auto order = Types::order(stage);
      {
        const GroupThread thread;
        weigh(s, Types::minus_lse(stage), thread.lane, a.problem.scale * PowersOfTwo::of_natural);
        if (order[TileOrder::is_edge] != 0)
          hide_queries<Types>(s, thread.first_row(group), thread.lane, order[TileOrder::query]);
      }

      wait<0>(d);
      wait<0>(dk, ds);
      const std::int32_t left = order[TileOrder::left];
      const SharedAddress ds_tile = Types::ds(static_cast<std::uint32_t>(left) % 2);
      const int own = arch::renewed(group);
      const GroupThread thread;
      const int first_row = thread.first_row(own), lane = thread.lane;
      const bool reports = thread.reports();
      // The tile before is not needed any more.
      if (reports && order[TileOrder::is_first] == 0) q_ring.release(place.q().before());
      p.template round<dtype>(s);
      {
        Products weights(p);
        weights.template add<dtype>(dv, p, ColumnLines<QueryTile>(Types::dout(stage)));
        weights.commit();
      }
      differentiate(s, d, Types::delta(stage), lane);
      if (order[TileOrder::is_edge] != 0)
        hide_queries<Types>(d, first_row, lane, order[TileOrder::query]);
      ds.template round<dtype>(d);
      store_gradients<Types>(ds, ds_tile, first_row, lane);
      arch::publish_shared();
      float* const sums = order.floats(TileOrder::sums);
      const std::int32_t rows_left = order[TileOrder::rows];
      arch::reach_barrier(gradients_there(left, 1 - own), Types::computing_threads);
      wait<0>(dv, p);
      if (reports) dout_ring.release(now);
      place.advance();
      if (left > 0) wait_for_queries();
      // The last tile has no next one: it multiplies whatever is there.
      {
        Products scores(ds);
        scores.template multiply<dtype, bucket>(s, RowLines<KeyTile>(Types::k(), group_rows * own),
                                                RowLines<QueryTile>(Types::q(place.q().stage())));
        scores.commit();
      }
      arch::barrier(gradients_there(left, own), Types::computing_threads);
      if (reports && !DqTurns::in_order(a)) statistics_ring.release(now);
      {
        Products queries;
        queries.template multiply<dtype, Types::keys>(
            dq, ColumnLines<ScoreTile>(ds_tile),
            ColumnLines<KeyTile>(Types::k(), Types::query_columns * own));
        queries.commit();
        Products gradients;
        gradients.template add<dtype>(dk, ds, ColumnLines<QueryTile>(Types::q(q_stage)));
        gradients.commit();
        expect(dk);
      }
      bool has_come = !DqTurns::in_order(a) || lane != 0;
      if (!has_come) has_come = is_turn(order);
      wait<1>(dq);
      add_queries<Types>(
          dq, Types::dq(own, thread.warp), lane,
          sums + (thread.warp * (bucket / DqSums::columns) + own * Types::strips) *
                     DqSums::block_floats,
          DqSums::rows * thread.warp < rows_left,
          [&] {
            if (DqTurns::in_order(a)) wait_for_turn(order, has_come);
          },
          [&] {
            if (!DqTurns::in_order(a)) return;
            // The tile before, or all.
            if (left > 0) {
              arch::wait_for_stores<1>();
            } else {
              arch::wait_for_stores<0>();
            }
            statistics_ring.release(now);
          });
      if (left > 0) wait_for_values();
      {
        Products values;
        values.template multiply<dtype, bucket>(
            d, RowLines<KeyTile>(Types::v(), group_rows * own),
            RowLines<QueryTile>(Types::dout(place.rest().stage())));
        values.commit();
      }
      wait<2>(s);
      if (left == 0) break;
    }
    wait<0>(d);
    wait<0>(dk, ds);
  }
  finish_keys<Types>(a, group, dk, dv);
}

template <KernelSpec spec>
void backward_by_groups(const BackwardWarpgroupsArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  constexpr BackwardGroups tile = Types::tile;
  {
    const OwnKeys<Types> own(a.backward);
    if (!own.exist()) return leave_plane(a.backward, backward_block(spec).reports);
    store_block(a.backward, own);
  }
  if (arch::thread() == 0) {
    Types::key_ring().make(tile.groups);
    Types::q_ring().make(tile.groups);
    Types::dout_ring().make(tile.groups);
    // Where blocks take turns, each warp reports.
    Types::statistics_ring().make((DqTurns::in_order(a.backward) ? 4 : 1) * tile.groups,
                                  arch::wave_size);
    arch::publish_barriers();
  }
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    copy_tiles<spec>(a);
  } else {
    arch::take_registers<tile.computing>();
    compute_gradients<spec>(a.backward, group - 1);
  }
}

}  // namespace rocflash::kernel
