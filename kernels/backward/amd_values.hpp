// dv on AMD GPUs in a kernel of its own, where registers do not hold dk, too.
//
// Plain problems above 128 columns on gfx90a and gfx942 have a schedule of their own: a wave has its SIMD to itself,
// so everything that is not a product runs beside one. Weights are a tile behind scores, and each of both tiles lies in
// LDS once: one is written while the other is used.
//
//   S of the next tile     P = exp2(S - lse) of this one; dout of this tile written to LDS, that of the next one loaded
//   barrier
//   dVᵀ += dOᵀ·P           q of the tile after the next written to LDS, that of another one loaded; lse
//   barrier
//
// All waves compute all tiles that some key of the workgroup is seen by: few are not seen by a wave's own.
#pragma once

#include "backward/amd_walk.hpp"
#include "tile/ahead.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void plain_values(const BackwardArguments& a) {
  using Types = BackwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  using Block = typename Types::Block;
  constexpr BackwardTile tile = Types::tile;
  constexpr int count = Types::count;

  ROCFLASH_SHARED_ARRAY Words4 shared_q[Types::Streamed::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_dout[Types::Turned::Tile::chunks];
  alignas(16) ROCFLASH_SHARED_ARRAY float shared_statistics[Statistics<Types>::numbers];

  // The workgroup's keys, the wave's, and the lane's own.
  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const auto [item, sequence, block_begin, wave_begin] = KeysPosition<spec>(a);
  if (block_begin >= sequence.sk) return;
  const Span seen_by_all =
      uniform(SeeingQueries(p.visibility, sequence, wave_begin, Types::wave_rows).all);
  const KeyView key(p.visibility, sequence, wave_begin + Scores::lane_column());
  const Scale scale(p.scale);
  constexpr int score_steps = spec.bucket / Mma::depth;
  const auto k = laid_aside<Mma, score_steps>(
      own_rows<Types>(p.k, sequence.batch, sequence.k_row + wave_begin, sequence.sk - wave_begin,
                      item.head, scale.turn_sign, nullptr));

  const KeyWalk<Types> way(a, sequence, item, block_begin);
  const std::int32_t tiles = way.tiles;
  TileWalk q_walk = way.walk(p.q), dout_walk = way.walk(t.dout);
  const std::int32_t q_bytes = way.row_bytes(p.q), dout_bytes = way.row_bytes(t.dout);
  typename Types::RowsStaging q(p.q);
  typename Types::TurnedStaging dout(t.dout);
  Statistics<Types> statistics(t.lse, a.delta, sequence.batch, way.first_head, way.first_row,
                               tiles);
  // Where each tensor's next tile is; after the last one there are no rows to load.
  TileTurn now{0, tiles > 0 ? way.group : 0}, q_turn = now, dout_turn = now, lse_turn = now;
  std::int32_t lse_rows = 0;  // that were loaded
  const auto go_on = [&](TileTurn& turn) {
    // In a scalar register: what lanes do with it would else make it, and all scalars, theirs.
    const bool last = arch::uniform(turn.last(tiles) ? 1 : 0) != 0;
    turn = turn.after(tiles);
    return last;
  };
  const auto load_q = [&] {
    q.load(Block(q_walk.at, way.rows_of(q_turn) * q_bytes));
    q_walk.next(go_on(q_turn));
  };
  const auto load_dout = [&] {
    dout.load(Block(dout_walk.at, way.rows_of(dout_turn) * dout_bytes));
    dout_walk.next(go_on(dout_turn));
  };
  const auto load_lse = [&] {
    lse_rows = way.rows_of(lse_turn);
    statistics.load(lse_rows);
    const bool last = go_on(lse_turn);
    if (arch::uniform(lse_turn.heads) > 0) statistics.next(last);
  };
  constexpr int q_stores = Types::RowsStaging::stores, dout_stores = Types::TurnedStaging::stores;

  typename Types::Sums dv = {};
  Scores scores;
  float (&s)[count] = scores.at[0];
  MadeFragments<Mma, tile.streamed / Mma::depth> weights;
  constexpr int sum_parts = Types::Sums::row_parts,
                sum_steps = sum_parts * (tile.streamed / Mma::depth);
  const int lane_row = Scores::lane_row();
  const typename Types::StreamedOperand q_rows{shared_q};
  const typename Types::TurnedOperand dout_turned{shared_dout};
  const ROCFLASH_SHARED Float4* const lse_of =
      (const ROCFLASH_SHARED Float4*)(shared_statistics + lane_row);
  constexpr int ahead = 6;

  // S of the tile in LDS; `weigh`: and the weights of the one before.
  const auto next_scores = [&]<bool weigh>() {
    Float4 lse[count / 4];
    if constexpr (weigh) {
      ROCFLASH_UNROLL
      for (int i = 0; i < count / 4; ++i) lse[i] = lse_of[Scores::row(4 * i) / 4];
      const std::int32_t begin = way.first_query + now.tile * tile.streamed;
      if (__builtin_expect(begin < seen_by_all.begin || begin + tile.streamed > seen_by_all.end,
                           false)) {
        ROCFLASH_UNROLL
        for (int i = 0; i < count; ++i) {
          if (!key.seen_by(begin + lane_row + Scores::row(i))) lse[i / 4][i % 4] = infinity;
        }
      }
    }
    typename Mma::Result sum = {};
    const auto beside = [&]<int n>() {
      shared_out<n>(0, score_steps / 2, dout_stores,
                    [&](int i) { dout.store_one(i, shared_dout); });
      if (n == score_steps / 2) load_dout();
      if (n == score_steps / 2 + 1) load_lse();
      shared_out<n>(3, score_steps - 3, count, [&](int i) {
        s[i] = arch::exp2(s[i] * scale.unit - lse[i / 4][i % 4]);
        if (i % 2 == 1)
          weights.step_[i / 8][i % 8 / 2] = narrow_weights<spec.dtype>(s[i - 1], s[i]);
      });
    };
    read_ahead_slowly<Mma, score_steps, ahead>([&](int n) { return q_rows.fragment(0, n); },
                                               [&]<int n>(const typename Mma::Operand& left) {
                                                 sum = Mma::multiply_around(
                                                     left, k.fragment(0, n), sum, [&] {
                                                       arch::in_order();
                                                       if constexpr (weigh)
                                                         beside.template operator()<n>();
                                                       arch::in_order();
                                                     });
                                                 arch::settle(sum);
                                               });
    ROCFLASH_UNROLL
    for (int r = 0; r < Mma::results; ++r) s[r] = sum[r];
  };
  const auto add_values = [&] {
    read_ahead_slowly<Mma, sum_steps, ahead>(
        [&](int n) { return dout_turned.fragment(n % sum_parts, n / sum_parts); },
        [&]<int n>(const typename Mma::Operand& left) {
          typename Mma::Result& sum = dv.part[n % sum_parts][0];
          sum = Mma::multiply_around(left, weights.step_[n / sum_parts], sum, [&] {
            arch::in_order();
            shared_out<n>(0, sum_steps / 2, q_stores, [&](int i) { q.store_one(i, shared_q); });
            if (n == sum_steps / 2) load_q();
            if (n == sum_steps / 2 + 1) statistics.store(shared_statistics, lse_rows);
            if (n == sum_steps / 2 + 2) now = now.after(tiles);
            arch::in_order();
          });
        });
  };
  static_assert(Scores::row_parts == 1);

  if (tiles > 0) {
    load_q();
    load_dout();
    load_lse();
    q.store(shared_q);
    statistics.store(shared_statistics, lse_rows);
    load_q();
    arch::barrier();
    next_scores.template operator()<false>();
    arch::barrier();
    q.store(shared_q);
    load_q();
    for (std::int32_t n = 0; n < tiles * way.group; ++n) {
      arch::barrier();
      next_scores.template operator()<true>();
      arch::barrier();
      add_values();
    }
  }
  finish_keys<spec, false, true>(a, {}, dv);
}

template <KernelSpec spec>
void backward_dv(const BackwardArguments& a) {
  if constexpr (dv_by_steps(this_family, spec)) {
    plain_values<spec>(a);
  } else {
    keys_kernel<spec, false, true>(a);
  }
}

}  // namespace rocflash::kernel
