// Backward on Hopper for more than 128 columns, whose sums dk and dv of 64 keys take all registers of a
// warpgroup each. So two warpgroups share the keys of a workgroup, and each has the product that leads to its
// own sums; a third has tiles of queries copied (sm90_tiles.hpp):
//
//   weights     Sᵀ = K·Qᵀ     P from it, rounded     dV += Pᵀ·dO
//   gradients   dPᵀ = V·dOᵀ   dS from it and P       dK += dSᵀ·Q     dQ = dS·K
//
// P and dS are left operands in registers as they are. P goes to the other warpgroup through shared memory,
// thread by thread: both have the same keys and queries in the same places. dS goes there for dQ, whose
// columns are computed 64 at a time and added to the sums in global memory (dq_sums.hpp) by copies that add.
//
// P is rounded when dS is computed from it, as plain attention in the same dtype has it: in f32 it would not fit.
//
// One warpgroup's arithmetic is done under the other's products, and most of it under its own: P of the next
// tile under dV, parts of dQ leave under dK of the tile and dP of the next one. The first warpgroup has fewer
// products and is ahead by up to a tile.
//
// Per tile of 64 queries and 64 keys of 256 columns: products 2560 clocks; shared memory 3800, at 128 bytes
// each: S and dP 512 each, dV and dK 256 each, dQ 512 and its way out 1024, tiles in 512, P and dS 192.
#pragma once

#include "backward/sm90.hpp"

namespace rocflash::kernel {

// The named barriers of each warpgroup alone, besides that of both (meet).
enum LargeBarrier : int { weights_alone = 2, gradients_alone };

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

// dP becomes dS, by weights that the other warpgroup has passed.
template <class Types>
void differentiate_passed(typename Types::Scores& d ROCFLASH_SETTLED, SharedAddress delta,
                          const GroupThread& thread) {
  using Scores = typename Types::Scores;
  ROCFLASH_UNROLL
  for (int step = 0; step < Types::queries / product_depth; ++step) {
    const Words4 p = arch::load_shared(passed_weights<Types>(thread.number, step));
    ROCFLASH_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int n = 4 * step + 2 * half;
      const Float2 mean = two_of<Scores>(delta, thread.lane, n);
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::lane_rows; ++i) {
        const std::uint32_t two = p[2 * half + i];
        const auto low = static_cast<std::uint16_t>(two),
                   high = static_cast<std::uint16_t>(two >> 16);
        d.at(i, n) = widen<Types::dtype>(low) * (d.at(i, n) - mean.x);
        d.at(i, n + 1) = widen<Types::dtype>(high) * (d.at(i, n + 1) - mean.y);
      }
    }
  }
}

// Both have the loop over tiles: the rings that tiles come by, and where in them the next one is.
template <class Types>
struct TileLoop {
  TilePlaces<Types::q_stages, Types::stages> place;

  auto order() const { return Types::order(place.rest().stage()); }
  SharedAddress q() const { return Types::q(place.q().stage()); }
  SharedAddress dout() const { return Types::dout(place.rest().stage()); }
  void wait_for_q() const { Types::q_ring().wait(place.q()); }
  void wait_for_dout() const { Types::dout_ring().wait(place.rest()); }
  void wait_for_statistics() const { Types::statistics_ring().wait(place.rest()); }
};

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
    typename Types::Weights p[Types::parts];
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
        hide_queries<Types, 0, Types::Scores::lane_columns>(s, thread.first_row(0), thread.lane,
                                                            order[TileOrder::query]);
    };
    const auto pass_weights = [&] {
      constexpr int steps = Types::Weights::steps;
      static_for<Types::parts>(
          [&](auto part) { p[part.value].template round<dtype>(s, part.value * steps); });
      Types::weights_ring().wait_until_empty(passing);
      const GroupThread thread;
      static_for<Types::parts * steps>([&](auto step) {
        arch::store_shared(passed_weights<Types>(thread.number, step.value),
                           p[step.value / steps].words(step.value % steps));
      });
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
      Products values(p[0]);
      static_for<Types::parts>([&](auto part) {
        values.template add<dtype>(
            dv, p[part.value],
            ColumnLines<QueryTile>(now.dout(), 0, part.value * Types::part_queries));
      });
      values.commit();
      expect(dv);
      if (GroupThread().reports()) Types::statistics_ring().release(now.place.rest());
      wait<1>(s);
      if (left == 0) break;
      loop.wait_for_statistics();
      weigh_scores();
      static_for<Types::parts>([&](auto part) { wait<0>(dv, p[part.value]); });
      wait<0>(dv);
      if (GroupThread().reports()) Types::dout_ring().release(now.place.rest());
      pass_weights();
    }
    static_for<Types::parts>([&](auto part) { wait<0>(dv, p[part.value]); });
    wait<0>(dv);
  }
  finish_sums<Types, false>(a, dv);
}

// dP, dS, dK and dQ.
template <KernelSpec spec>
void compute_key_gradients(const BackwardArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  using ScoreTile = typename Types::ScoreTile;
  constexpr DType dtype = spec.dtype;
  constexpr int columns = Types::query_columns, parts = spec.bucket / columns;

  typename Types::KeySums dk;
  dk.clear();
  if (Types::block()[BlockOrder::count] > 0) {
    TileLoop<Types> loop;
    DrainPlace<1> passing;
    typename Types::Scores d;
    typename Types::QuerySums dq;
    typename Types::Weights ds[Types::parts];
    const SharedAddress ds_tile = Types::ds(0);
    const auto add_gradients = [&](auto part, SharedAddress q) {
      Products gradients(ds[part.value]);
      gradients.template add<dtype>(dk, ds[part.value],
                                    ColumnLines<QueryTile>(q, 0, part.value * Types::part_queries));
      gradients.commit();
    };
    loop.wait_for_dout();
    {
      Products values;
      values.template multiply<dtype, spec.bucket>(d, RowLines<KeyTile>(Types::v()),
                                                   RowLines<QueryTile>(loop.dout()));
      values.commit();
    }

#pragma clang loop unroll(disable)
    while (true) {
      const TileLoop<Types> now = loop;
      const auto order = now.order();
      loop.wait_for_statistics();
      wait<0>(d);
      const GroupThread thread;
      if (thread.reports()) Types::dout_ring().release(now.place.rest());
      Types::weights_ring().wait(passing);
      differentiate_passed<Types>(d, Types::delta(now.place.rest().stage()), thread);
      Types::weights_ring().release(passing);  // each thread what it read
      passing.advance();
      if (order[TileOrder::is_edge] != 0)
        hide_queries<Types, 0, Types::Scores::lane_columns>(d, thread.first_row(0), thread.lane,
                                                            order[TileOrder::query]);
      clear_rows_alone<QueryTile>(now.q(), order[TileOrder::rows], gradients_alone);
      static_for<Types::parts>([&](auto part) {
        ds[part.value].template round<dtype>(d, part.value * Types::Weights::steps);
      });
      // All warps are done with dQ of the tile before.
      arch::barrier(gradients_alone, arch::warpgroup_size);
      static_for<Types::parts>([&](auto part) {
        store_gradients<Types>(ds[part.value], ds_tile, thread.first_row(0), thread.lane,
                               part.value);
      });
      add_gradients(Number<0>(), now.q());
      float* const sums = order.floats(TileOrder::sums);
      const std::int32_t rows = order[TileOrder::rows], left = order[TileOrder::left];
      arch::publish_shared();
      arch::barrier(gradients_alone, arch::warpgroup_size);
      if (thread.reports()) Types::statistics_ring().release(now.place.rest());
      loop.place.advance();
      if (left > 0) loop.wait_for_dout();

      static_for<parts>([&](auto part) {
        constexpr int column = part.value * columns;
        Products queries;
        queries.template multiply<dtype, Types::keys>(dq, ColumnLines<ScoreTile>(ds_tile),
                                                      ColumnLines<KeyTile>(Types::k(), column));
        queries.commit();
        if constexpr (part.value == 0) {
          add_gradients(Number<1>(), now.q());
        } else {
          // dP of the next tile; behind the last tile, of whatever is there.
          constexpr int from = (part.value - 1) * KeyTile::width,
                        depth = part.value + 1 < parts ? KeyTile::width : spec.bucket - from;
          const RowLines<KeyTile> v(Types::v(), 0, from);
          const RowLines<QueryTile> dout(loop.dout(), 0, from);
          Products values;
          if constexpr (from == 0) {
            values.template multiply<dtype, depth>(d, v, dout);
          } else {
            values.template add<dtype, depth>(d, v, dout);
          }
          values.commit();
        }
        wait<1>(dq);
        // dK is there, too.
        if (part.value == 1 && thread.reports()) Types::q_ring().release(now.place.q());
        const int first_query = 16 * thread.warp;
        add_queries<Types>(dq, Types::dq(0, thread.warp), thread.lane,
                           sums + (first_query / DqSums::rows * (spec.bucket / DqSums::columns) +
                                   column / DqSums::columns) *
                                      DqSums::block_floats,
                           first_query < rows);
      });
      wait<1>(dk);
      static_for<Types::parts>([&](auto part) { wait<1>(dk, ds[part.value]); });
      expect(d);
      if (left == 0) break;
    }
    wait<0>(d);
  }
  finish_sums<Types, true>(a, dk);
  if (arch::lane() == 0) arch::wait_for_stores<0>();
}

template <KernelSpec spec>
void backward_warpgroups_large(const BackwardWarpgroupsArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  constexpr BackwardGroups tile = Types::tile;
  {
    const OwnKeys<Types> own(a.backward);
    if (!own.exist()) return;
    store_block(a.backward, own);
  }
  if (arch::thread() == 0) {
    Types::key_ring().make(tile.groups);
    Types::q_ring().make(tile.groups);
    Types::dout_ring().make(tile.groups);
    Types::statistics_ring().make(tile.groups, arch::wave_size);
    Types::weights_ring().make(arch::warpgroup_size, arch::warpgroup_size);
    arch::publish_barriers();
  }
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    arch::give_registers<tile.copying>();
    if (arch::thread() == 0) copy_rows<spec>(a);
    if (arch::wave() == 1) copy_statistics<spec>(a.backward);
  } else if (group == 1) {
    arch::take_registers<tile.weighing>();
    wait_for_keys<Types>();
    compute_weights<spec>(a.backward);
  } else {
    arch::take_registers<tile.computing>();
    wait_for_keys<Types>();
    compute_key_gradients<spec>(a.backward);
  }
}

}  // namespace rocflash::kernel
