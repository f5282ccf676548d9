// Backward on Hopper for more than 128 columns. Sums dk and dv of 64 keys take most registers of a warpgroup
// each, so three warpgroups share the keys of a workgroup, and each has the products that lead to its own
// result. A fourth has tiles of queries copied (sm90_tiles.hpp).
//
//   weights     Sᵀ = K·Qᵀ     P from it, rounded     dV += Pᵀ·dO
//   gradients   dPᵀ = V·dOᵀ   dS from it and P       dK += dSᵀ·Q
//   queries     dQ = dS·K     64 columns at a time, added to f32 sums in global memory (dq_sums.hpp) by copies
//                             that add, in any order or by turns (turns.hpp)
//
// P and dS are left operands in registers as they are. P goes to the next warpgroup through shared memory,
// thread by thread: both have the same keys and queries in the same places. dS goes there as dQ's operand. Each
// warpgroup is up to a tile ahead of the next, so that its arithmetic is done under their products, and most
// of it under its own.
//
// P is rounded when dS is computed from it, as plain attention in the same dtype has it: in f32 it would not fit.
//
// Per tile of 64 queries and 64 keys of 256 columns: products 2560 clocks; shared memory 3800, at 128 bytes
// each: S and dP 512 each, dV and dK 256 each, dQ 512 and its way out 1024, tiles in 512, P and dS 192.
#pragma once

#include "backward/sm90.hpp"

namespace rocflash::kernel {

// The named barriers besides that of all who compute (meet): of two warpgroups, when dS is there and has been
// read, and of each alone.
enum LargeBarrier : int { ds_there = 2, ds_read, weights_alone, gradients_alone };
inline constexpr int two_groups = 2 * arch::warpgroup_size;

// Rows of a tile from `rows` on become 0, by one warpgroup that meets behind it.
template <class Tile>
void clear_rows_alone(SharedAddress tile, std::int32_t rows, LargeBarrier alone) {
  if (rows >= Tile::rows) return;
  clear_rows<Tile>(tile, rows, static_cast<int>(GroupThread().number), arch::warpgroup_size);
  arch::barrier(alone, arch::warpgroup_size);
}

template <class Types>
void wait_for_keys() {
  using KeyTile = typename Types::KeyTile;
  Types::key_ring().wait(DrainPlace<1>());
  clear_rows_behind<Types, KeyTile>(Types::k(), Types::block()[BlockOrder::keys]);
  clear_rows_behind<Types, KeyTile>(Types::v(), Types::block()[BlockOrder::keys]);
}

// Where a thread's weights of a step of the depth pass from one warpgroup to the other.
template <class Types>
SharedAddress passed_weights(std::uint32_t thread, int step) {
  return Types::ds(1) + 16 * (thread + static_cast<std::uint32_t>(step * arch::warpgroup_size));
}

// Weights that the other warpgroup has passed, asked for while dP is computed.
template <class Types>
struct PassedWeights {
  using Scores = typename Types::Scores;
  static constexpr int steps = Types::Weights::steps;
  Words4 weights[steps];

  PassedWeights(const GroupThread& thread, const DrainPlace<1>& place) {
    Types::weights_ring().wait(place);
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n)
      weights[n] = arch::load_shared(passed_weights<Types>(thread.number, n));
    Types::weights_ring().release(place);  // each thread what it read
  }
  // dP becomes dS.
  void differentiate(Scores& d ROCFLASH_SETTLED, SharedAddress delta, int lane) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < Scores::lane_columns; n += 2) {
      const Float2 mean = two_of<Scores>(delta, lane, n);
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::lane_rows; ++i) {
        const std::uint32_t two = weights[n / 4][n % 4 + i];
        const auto low = static_cast<std::uint16_t>(two),
                   high = static_cast<std::uint16_t>(two >> 16);
        d.at(i, n) = widen<Types::dtype>(low) * (d.at(i, n) - mean.x);
        d.at(i, n + 1) = widen<Types::dtype>(high) * (d.at(i, n + 1) - mean.y);
      }
    }
  }
};

// The loop over tiles of two of them: the rings that tiles come by, and where in them the next one is.
template <class Types>
struct TileLoop {
  TilePlaces<Types::q_stages, Types::stages> place;

  auto order() const { return Types::order(place.rest().stage()); }
  SharedAddress q() const { return Types::q(place.q().stage()); }
  SharedAddress dout() const { return Types::dout(place.rest().stage()); }
  void wait_for_q() const { Types::q_ring().wait(place.q()); }
  void wait_for_dout() const { Types::dout_ring().wait(place.rest()); }
  void wait_for_statistics() const { Types::statistics_ring().wait(place.rest()); }
  // Each thread what it read: no barrier stands between the reads of the others and this.
  void release_statistics() const { Types::statistics_ring().release(place.rest()); }
};

// dv or dk += weights or gradients times a tile of queries, by two instructions each.
template <class Types>
void add_to_keys(Products& products ROCFLASH_SETTLED,
                 typename Types::KeySums& sums ROCFLASH_TAKES_OFF,
                 typename Types::Weights& left ROCFLASH_TAKES_OFF, SharedAddress tile) {
  constexpr DType dtype = Types::dtype;
  constexpr int half = 128;
  using Lines = ColumnLines<typename Types::QueryTile>;
  products.template add_columns<dtype, 0, half>(sums, left, Lines(tile));
  products.template add_columns<dtype, half, Types::bucket - half>(sums, left, Lines(tile, half));
}

// The end of one warpgroup: its sums become rows, and rows that are not to be trusted are computed again.
template <class Types, bool is_dk>
void finish_sums(const BackwardArguments& a, const typename Types::KeySums& sums ROCFLASH_SETTLED) {
  const OwnKeys<Types> own(a, arch::renewed(arch::group()));
  const int first_row = GroupThread().first_row(0);
  BrokenRows broken = store_keys<Types, is_dk>(a, own, first_row, sums);
  while (broken.any()) {
    const auto row = broken.take();
    exact_dk_dv<Types::dtype>(
        a, own.sequence, own.item.head,
        own.begin + first_row + Types::KeySums::row(row.first_lane, row.which), is_dk, !is_dk);
  }
}

// S, P and dV.
template <KernelSpec spec>
void compute_weights(const BackwardArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  constexpr DType dtype = spec.dtype;

  typename Types::KeySums dv;
  dv.clear();
  if (Types::block()[BlockOrder::count] > 0) {
    TileLoop<Types> loop;
    FillPlace<1> passing;
    typename Types::Scores s;
    typename Types::Weights p;
    const auto start_scores = [&] {
      Products scores;
      scores.template multiply<dtype, spec.bucket>(s, RowLines<KeyTile>(Types::k()),
                                                   RowLines<QueryTile>(loop.q()));
      scores.commit();
    };
    // Of the tile whose scores are there.
    const auto weigh_scores = [&] {
      const GroupThread thread;
      const auto order = loop.order();
      if (thread.reports()) Types::q_ring().release(loop.place.q());
      weigh(s, Types::minus_lse(loop.place.rest().stage()), thread.lane,
            a.problem.scale * PowersOfTwo::of_natural);
      if (order[TileOrder::is_edge] != 0)
        hide_queries<Types>(s, thread.first_row(0), thread.lane, order[TileOrder::query]);
    };
    const auto pass_weights = [&] {
      p.template round<dtype>(s);
      Types::weights_ring().wait_until_empty(passing);
      const GroupThread thread;
      ROCFLASH_UNROLL
      for (int n = 0; n < Types::Weights::steps; ++n)
        arch::store_shared(passed_weights<Types>(thread.number, n), p.words(n));
      Types::weights_ring().announce(passing, 0);  // each thread what it stored
      passing.advance();
    };
    loop.wait_for_statistics();
    loop.wait_for_q();
    start_scores();
    wait<0>(s);
    weigh_scores();
    pass_weights();

#pragma clang loop unroll(disable)
    while (true) {
      const auto order = loop.order();
      const std::int32_t left = order[TileOrder::left], rows = order[TileOrder::rows];
      const TileLoop<Types> now = loop;
      loop.place.advance();
      if (left > 0) loop.wait_for_q();
      // The last tile has no next one: it multiplies whatever is there.
      start_scores();
      now.wait_for_dout();
      // The other warpgroup may read them at the same time: what it makes of them is hidden.
      clear_rows_alone<QueryTile>(now.dout(), rows, weights_alone);
      Products values(p);
      add_to_keys<Types>(values, dv, p, now.dout());
      values.commit();
      now.release_statistics();
      wait<1>(s);
      if (left == 0) break;
      loop.wait_for_statistics();
      weigh_scores();
      wait<0>(dv, p);
      if (GroupThread().reports()) Types::dout_ring().release(now.place.rest());
      pass_weights();
    }
    wait<0>(dv, p);
  }
  finish_sums<Types, false>(a, dv);
}

// dP, dS and dK.
template <KernelSpec spec>
void compute_gradients_of_keys(const BackwardArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  constexpr DType dtype = spec.dtype;

  typename Types::KeySums dk;
  dk.clear();
  if (Types::block()[BlockOrder::count] > 0) {
    TileLoop<Types> loop;
    DrainPlace<1> passing;
    typename Types::Scores d;
    typename Types::Weights ds;
    const auto start_values = [&] {
      Products values;
      values.template multiply<dtype, spec.bucket>(d, RowLines<KeyTile>(Types::v()),
                                                   RowLines<QueryTile>(loop.dout()));
      values.commit();
    };
    loop.wait_for_dout();
    start_values();

#pragma clang loop unroll(disable)
    while (true) {
      const TileLoop<Types> now = loop;
      const auto order = now.order();
      now.wait_for_statistics();
      const GroupThread thread;
      const PassedWeights<Types> passed(thread, passing);
      passing.advance();
      wait<0>(d);
      if (thread.reports()) Types::dout_ring().release(now.place.rest());
      passed.differentiate(d, Types::delta(now.place.rest().stage()), thread.lane);
      if (order[TileOrder::is_edge] != 0)
        hide_queries<Types>(d, thread.first_row(0), thread.lane, order[TileOrder::query]);
      const std::int32_t left = order[TileOrder::left], rows = order[TileOrder::rows];
      now.release_statistics();
      clear_rows_alone<QueryTile>(now.q(), rows, gradients_alone);
      ds.template round<dtype>(d);
      arch::barrier(ds_read, two_groups);
      store_gradients<Types>(ds, Types::ds(0), thread.first_row(0), thread.lane);
      arch::publish_shared();
      arch::reach_barrier(ds_there, two_groups);
      Products gradients(ds);
      add_to_keys<Types>(gradients, dk, ds, now.q());
      gradients.commit();
      loop.place.advance();
      if (left > 0) loop.wait_for_dout();
      // The last tile has no next one: it multiplies whatever is there.
      start_values();
      wait<1>(dk, ds);
      if (GroupThread().reports()) Types::q_ring().release(now.place.q());
      if (left == 0) break;
    }
    wait<0>(d);
    arch::barrier(ds_read, two_groups);  // of the last ones
  }
  finish_sums<Types, true>(a, dk);
}

// dQ. Where blocks take turns, each warp asks for the turn before there is dS, and reports as soon as all columns are
// added; a warp of the copying group passes the turn.
template <KernelSpec spec>
void compute_queries(const BackwardArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using ScoreTile = typename Types::ScoreTile;
  constexpr int columns = Types::query_columns, parts = spec.bucket / columns;
  if (Types::block()[BlockOrder::count] == 0) return report_additions(a);
  DrainPlace<Types::stages> place;
  FillPlace<1> added;
  typename Types::QuerySums dq;
  arch::reach_barrier(ds_read, two_groups);  // there are none yet
#pragma clang loop unroll(disable)
  while (true) {
    Types::statistics_ring().wait(place);
    const auto order = Types::order(place.stage());
    const std::int32_t left = order[TileOrder::left];
    const GroupThread thread;
    const int first_query = 16 * thread.warp;
    const bool there = first_query < order[TileOrder::rows];
    float* const sums = order.floats(TileOrder::sums) + first_query * spec.bucket;
    const bool in_turn = thread.lane == 0 && DqTurns::in_order(a);
    const Turn turn(order);
    // Each thread what it read: while it waits for a turn, others may be a tile ahead.
    Types::statistics_ring().release(place);
    place.advance();
    bool has_come = true;
    if (in_turn) has_come = turn.has_come();
    arch::barrier(ds_there, two_groups);
    static_for<parts>([&](auto part) {
      constexpr int column = part.value * columns;
      Products queries;
      queries.template multiply<spec.dtype, Types::keys>(dq, ColumnLines<ScoreTile>(Types::ds(0)),
                                                         ColumnLines<KeyTile>(Types::k(), column));
      queries.commit();
      constexpr bool is_first = part.value == 0, is_last = part.value + 1 == parts;
      wait<0>(dq);
      if constexpr (is_last) arch::reach_barrier(ds_read, two_groups);
      add_queries<Types>(
          dq, Types::dq(0, thread.warp), thread.lane, sums + column * DqSums::rows, there,
          [&] {
            if (is_first && in_turn) wait_for_turn(turn, has_come);
          },
          [&] {
            if (!is_last || !in_turn) return;
            arch::wait_for_stores<0>();
            Types::added_ring().fill(added, 0);
            added.advance();
          });
    });
    if (left == 0) break;
  }
  if (arch::lane() == 0) arch::wait_for_stores<0>();
  report_additions(a);
}

template <KernelSpec spec>
void backward_warpgroups_large(const BackwardWarpgroupsArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  constexpr BackwardGroups tile = Types::tile;
  {
    const OwnKeys<Types> own(a.backward);
    if (!own.exist()) return leave_plane(a.backward, backward_block(spec).reports);
    store_block(a.backward, own);
  }
  if (arch::thread() == 0) {
    Types::key_ring().make(tile.groups);
    // The warpgroup of dq reads neither.
    Types::q_ring().make(tile.groups - 1);
    Types::dout_ring().make(tile.groups - 1);
    Types::statistics_ring().make(Types::computing_threads, arch::wave_size);  // each reports
    Types::weights_ring().make(arch::warpgroup_size, arch::warpgroup_size);
    Types::added_ring().make(1, arch::warpgroup_size / arch::wave_size);
    arch::publish_barriers();
  }
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    copy_tiles<spec>(a);
  } else if (group == 1) {
    arch::take_registers<tile.weighing>();
    wait_for_keys<Types>();
    compute_weights<spec>(a.backward);
  } else if (group == 2) {
    arch::take_registers<tile.computing>();
    wait_for_keys<Types>();
    compute_gradients_of_keys<spec>(a.backward);
  } else {
    arch::give_registers<tile.adding>();
    wait_for_keys<Types>();
    compute_queries<spec>(a.backward);
  }
}

}  // namespace rocflash::kernel
