// Backward of plain problems on AMD GPUs in one kernel (amd_fused.hpp), scheduled by hand: what a wave computes
// of dq, and one sequence of steps for all products.
#pragma once

#include "backward/amd_walk.hpp"
#include "backward/exchange.hpp"
#include "tile/ahead.hpp"

namespace rocflash::kernel {

// Which part of a tile of dq a wave computes: some parts of its columns, for one part of its queries.
template <class Types>
struct QueryShare {
  using Mma = typename Types::Mma;
  static constexpr int streamed = Types::tile.streamed, owned = Types::tile.owned;
  static constexpr int column_parts = Types::bucket / Mma::columns;
  static constexpr int parts = column_parts * (streamed / Mma::rows) / Types::waves;
  static constexpr int waves_per_query = column_parts / parts;
  static_assert(parts >= 1 && parts * waves_per_query == column_parts);
  static_assert(waves_per_query * (streamed / Mma::rows) == Types::waves);

  static int query_part() {
    return streamed == Mma::rows ? 0 : static_cast<unsigned>(arch::wave()) / waves_per_query;
  }
  static int column_part(int n) {
    return static_cast<unsigned>(arch::wave()) % waves_per_query * parts + n;
  }

  using Exchange = ScoreExchange<Mma, streamed, owned>;
};

// Columns of the workgroup's keys, as the right operand of dS·K: the wave's share in registers.
template <class Types>
class KeyColumns {
  using Share = QueryShare<Types>;
  using Mma = typename Types::Mma;
  using Block = typename Types::Block;
  static constexpr int rows = Types::tile.streamed, tiles = Types::tile.owned / rows,
                       steps = rows / Mma::depth;

 public:
  // By way of a tile in LDS that nothing else uses yet.
  KeyColumns(const Rows& k, std::int64_t batch, std::int64_t first, std::int32_t count,
             std::int64_t head, SharedWords4* room) {
    typename Types::TurnedStaging staging(k);
    ROCFLASH_UNROLL
    for (int n = 0; n < tiles; ++n) {
      staging.load(Block(k, 0, batch, first + n * rows, count - n * rows, head));
      staging.store(room);
      arch::barrier();
      ROCFLASH_UNROLL
      for (int part = 0; part < Share::parts; ++part) {
        ROCFLASH_UNROLL
        for (int step = 0; step < steps; ++step)
          fragment_[part][n * steps + step] =
              typename Types::TurnedOperand{room}.fragment(Share::column_part(part), step);
      }
      arch::barrier();
    }
  }
  typename Mma::Operand fragment(int part, int step) const { return fragment_[part][step]; }

 private:
  typename Mma::Operand fragment_[Share::parts][Types::tile.owned / Mma::depth];
};

// Plain problems. A wave has its SIMD to itself, so that all that is not a product runs beside one: products
// are steps of one sequence, with operands read ahead of them and other work behind them.
//
//   dQ of the tile before   tiles written to LDS, where there is room for one only
//   S                       what dQ has come to added to its sums, lse read
//   dP                      P = exp2(S - lse), delta read
//   dV                      dS = P (dP - delta), written to LDS
//   dK
//
// Where backward_dv gives dV (`fused_gives_dv`), k, v, k's columns and sums of dk take 320 of 512 registers. dS is then
// computed before dK and beside it. Registers have other work before dP: additions to dq end with S, and lse is read
// while weights are computed.
//
// With room for two tiles there is a barrier before the sequence. With room for one, a second one parts dQ
// from what reads the tile.
template <KernelSpec spec>
void plain_fused(const BackwardArguments& a) {
  using Types = BackwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  using Block = typename Types::Block;
  constexpr bool values = fused_gives_dv(this_family, spec.bucket);
  using Staging = typename Types::BothStaging;
  using DoutStaging = typename Stream<Types, values ? Shape::both : Shape::rows>::Staging;
  using Share = QueryShare<Types>;
  using Exchange = typename Share::Exchange;
  constexpr BackwardTile tile = Types::tile;
  constexpr int count = Types::count;
  constexpr bool two = this_family == Family::cdna4;  // whose LDS has room for them
  constexpr int buffers = two ? 2 : 1;

  ROCFLASH_SHARED_ARRAY Words4 shared_q[buffers][Types::Streamed::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_qt[buffers][Types::Turned::Tile::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_dout[buffers][Types::Streamed::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_doutt[buffers][values ? Types::Turned::Tile::chunks : 0];
  ROCFLASH_SHARED_ARRAY Words4 shared_ds[buffers][Exchange::chunks];
  alignas(16) ROCFLASH_SHARED_ARRAY float shared_statistics[buffers][Statistics<Types>::numbers];

  // The workgroup's keys, the wave's, and the lane's own.
  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const auto [item, sequence, block_begin, wave_begin] = KeysPosition<spec>(a);
  if (block_begin >= sequence.sk) return;
  const SeeingQueries wave_queries(p.visibility, sequence, wave_begin, Types::wave_rows);
  const Span seen_by_any = uniform(wave_queries.any), seen_by_all = uniform(wave_queries.all);
  const KeyView key(p.visibility, sequence, wave_begin + Scores::lane_column());
  const Scale scale(p.scale);
  const auto owned = [&](const Rows& rows, bool turn_sign) {
    return own_rows<Types>(rows, sequence.batch, sequence.k_row + wave_begin,
                           sequence.sk - wave_begin, item.head, turn_sign, nullptr);
  };
  constexpr int score_depth = spec.bucket / Mma::depth;
  const auto k = laid_aside<Mma, score_depth>(owned(p.k, scale.turn_sign)),
             v = laid_aside<Mma, score_depth>(owned(p.v, false));
  const KeyColumns<Types> columns(p.k, sequence.batch, sequence.k_row + block_begin,
                                  sequence.sk - block_begin, item.head, shared_qt[0]);

  const KeyWalk<Types> way(a, sequence, item, block_begin);
  const std::int32_t tiles = way.tiles, group = way.group, first_query = way.first_query;
  constexpr std::int32_t sum_bytes = 4 * spec.bucket;
  TileWalk q_walk = way.walk(p.q), dout_walk = way.walk(t.dout), sums_walk = way.walk(a.dq_sums, 4);
  const std::int32_t q_bytes = way.row_bytes(p.q), dout_bytes = way.row_bytes(t.dout);
  const auto rows_of = [&](TileTurn turn) { return way.rows_of(turn); };

  Staging q(p.q);
  DoutStaging dout(t.dout);
  Statistics<Types> statistics(t.lse, a.delta, sequence.batch, way.first_head, way.first_row,
                               tiles);
  TileTurn now{0, tiles > 0 ? group : 0}, loaded = now;
  std::int32_t stored_rows = 0;  // of the tile that was loaded
  const auto load_q = [&] { q.load(Block(q_walk.at, rows_of(loaded) * q_bytes)); };
  // Goes on to the next tile. After the last one there is nothing to load; the statistics' addresses stay.
  const auto load_dout = [&] { dout.load(Block(dout_walk.at, rows_of(loaded) * dout_bytes)); };
  const auto load_statistics = [&] {
    stored_rows = rows_of(loaded);
    statistics.load(stored_rows);
    // In a scalar register: what lanes do with it would else make it, and all scalars, theirs.
    const bool last = arch::uniform(loaded.last(tiles) ? 1 : 0) != 0;
    q_walk.next(last);
    dout_walk.next(last);
    loaded = loaded.after(tiles);
    if (arch::uniform(loaded.heads) > 0) statistics.next(last);
  };
  constexpr int stores = Staging::stores + DoutStaging::stores + 1;
  const auto store_one = [&](int n, int buffer) {
    if (n < Staging::stores) {
      q.store_one(n, shared_q[buffer], shared_qt[buffer]);
    } else if (n < stores - 1) {
      dout.store_one(n - Staging::stores, shared_dout[buffer], shared_doutt[buffer]);
    } else {
      statistics.store(shared_statistics[buffer], stored_rows);
    }
  };

  typename Types::Sums dk = {}, dv = {};
  typename Mma::Result dq[Share::parts] = {};
  std::int32_t dq_rows = 0;  // of them count: those of the tile before
  using Layout = typename Mma::Layout;
  const int dq_place =
      arch::renew((Share::query_part() * Mma::rows + Layout::lane_row(arch::lane())) * sum_bytes +
                  4 * (Share::column_part(0) * Mma::columns + Layout::lane_column(arch::lane())));
  const auto add_dq = [&](int first, int last) {
    ROCFLASH_UNROLL
    for (int n = first; n < last; ++n) {
      // Where registers are few, from each fourth row on: what is left of the offset fits the instruction's field.
      const int part = n / Mma::results, r = n % Mma::results,
                row = values ? 0 : Layout::register_row(r / 4 * 4);
      const arch::Window sums(
          sums_walk.at + row * sum_bytes,
          static_cast<std::uint32_t>(dq_rows > row ? (dq_rows - row) * sum_bytes : 0));
      sums.add(dq[part][r],
               static_cast<std::uint32_t>(dq_place + (Layout::register_row(r) - row) * sum_bytes +
                                          4 * part * Mma::columns));
    }
  };
  // Goes on to the next tile; the sums of dq stay a tile behind.
  sums_walk.rewind();
  const auto go_on = [&] {
    sums_walk.next(now.tile == 0);
    dq_rows = rows_of(now);
    now = now.after(tiles);
  };

  constexpr int dq_steps = tile.owned / Mma::depth;
  constexpr int score_steps = Scores::row_parts * score_depth;
  constexpr int sum_parts = Types::Sums::row_parts,
                sum_steps = sum_parts * (tile.streamed / Mma::depth);
  constexpr int s_at = dq_steps, dp_at = s_at + score_steps, dv_at = dp_at + score_steps,
                dk_at = dv_at + (values ? sum_steps : 0), all = dk_at + sum_steps;
  const int lane_row = Scores::lane_row();
  // Steps from `from` to `to`; those of dQ take dS of buffer `before`, the others tile `here`.
  const auto multiply = [&]<int from, int to>(int here, int before) {
    const Exchange read_ds(shared_ds[before]), write_ds(shared_ds[here]);
    const typename Types::StreamedOperand q_rows{shared_q[here]}, dout_rows{shared_dout[here]};
    const typename Types::TurnedOperand q_turned{shared_qt[here]}, dout_turned{shared_doutt[here]};
    const ROCFLASH_SHARED Float4* const lse_of =
        (const ROCFLASH_SHARED Float4*)(shared_statistics[here] + lane_row);
    const ROCFLASH_SHARED Float4* const delta_of =
        (const ROCFLASH_SHARED Float4*)(shared_statistics[here] + tile.streamed + lane_row);
    Scores scores, gradients;
    float (&s)[count] = scores.at[0], (&ds)[count] = gradients.at[0];
    Float4 lse[count / 4], delta[count / 4];
    MadeFragments<Mma, tile.streamed / Mma::depth> weights, slopes;
    typename Mma::Result sum;
    const auto slope = [&](int i) {
      ds[i] = s[i] * (ds[i] - delta[i / 4][i % 4]);
      Words4& words = slopes.step_[i / 8];
      if (i % 2 == 1) words[i % 8 / 2] = narrow_weights<spec.dtype>(ds[i - 1], ds[i]);
      if (i % 4 == 3) write_ds.write_quad(i / 4, i % 8 == 3 ? words.xy : words.zw);
    };
    constexpr int at_once = 8;  // slopes that dK starts with, where no dV comes before it
    const auto beside = [&]<int n>() {
      shared_out<n>(two ? dp_at : 0, dq_steps, stores,
                    [&](int i) { store_one(i, two ? 1 - here : here); });
      if (n == (two ? dk_at + 1 : s_at + 1)) load_q();
      if (n == (two ? dk_at + 2 : s_at + 4)) load_dout();
      if (n == (two ? dk_at + 3 : dv_at)) load_statistics();
      shared_out<n>(s_at + 2, (values ? 2 : 1) * score_steps - 2, Share::parts * Mma::results,
                    [&](int i) { add_dq(i, i + 1); });
      shared_out<n>(values ? s_at + 2 : dp_at, score_steps - 3, count / 4,
                    [&](int i) { lse[i] = lse_of[Scores::row(4 * i) / 4]; });
      // Without lse at the start of dP keys are hidden when the weights are there.
      if (n == (values ? dp_at : dk_at - 1)) {
        const std::int32_t begin = first_query + now.tile * tile.streamed;
        if (__builtin_expect(begin < seen_by_all.begin || begin + tile.streamed > seen_by_all.end,
                             false)) {
          ROCFLASH_UNROLL
          for (int i = 0; i < count; ++i) {
            const bool hidden = !key.seen_by(begin + lane_row + Scores::row(i));
            if (hidden && values) lse[i / 4][i % 4] = infinity;
            if (hidden && !values) s[i] = 0;
          }
        }
      }
      shared_out<n>(dp_at + (values ? 1 : 4), score_steps - (values ? 1 : 5), count, [&](int i) {
        s[i] = arch::exp2(s[i] * scale.unit - lse[i / 4][i % 4]);
        if (i % 2 == 1)
          weights.step_[i / 8][i % 8 / 2] = narrow_weights<spec.dtype>(s[i - 1], s[i]);
      });
      const auto read_delta = [&](int i) { delta[i] = delta_of[Scores::row(4 * i) / 4]; };
      if constexpr (values) {
        shared_out<n>(dp_at + 2, score_steps - 3, count / 4, read_delta);
      } else {
        shared_out<n>(dp_at + score_steps - 4, 4, at_once / 4, read_delta);
        shared_out<n>(dk_at, 2, count / 4 - at_once / 4,
                      [&](int i) { read_delta(at_once / 4 + i); });
      }
      if (n == dk_at + 5) go_on();
      if constexpr (values) {
        shared_out<n>(dv_at + 1, sum_steps - 1, count, slope);
      } else {
        shared_out<n>(dk_at + 2, sum_parts - 3, count - at_once,
                      [&](int i) { slope(at_once + i); });
      }
    };
    read_ahead_slowly<Mma, to - from, values ? 6 : 5>(
        [&](int m) {
          const int n = from + m;
          if (n < s_at) return read_ds.fragment(Share::query_part(), n);
          if (n < dp_at) return q_rows.fragment((n - s_at) / score_depth, (n - s_at) % score_depth);
          if (n < dv_at)
            return dout_rows.fragment((n - dp_at) / score_depth, (n - dp_at) % score_depth);
          return n < dk_at ? dout_turned.fragment((n - dv_at) % sum_parts, (n - dv_at) / sum_parts)
                           : q_turned.fragment((n - dk_at) % sum_parts, (n - dk_at) / sum_parts);
        },
        [&]<int m>(const typename Mma::Operand& left) {
          constexpr int n = from + m;
          const auto behind = [&] {
            arch::in_order();
            beside.template operator()<n>();
            arch::in_order();
          };
          if constexpr (n < s_at) {
            ROCFLASH_UNROLL
            for (int part = 0; part < Share::parts; ++part) {
              if (n == 0) dq[part] = typename Mma::Result{};
              dq[part] = Mma::multiply_around(left, columns.fragment(part, n), dq[part], [&] {
                if (part == 0) behind();
              });
            }
          } else if constexpr (n < dv_at) {
            constexpr int step = (n - s_at) % score_steps;
            if (step % score_depth == 0) sum = typename Mma::Result{};
            sum = Mma::multiply_around(left, (n < dp_at ? k : v).fragment(0, step % score_depth),
                                       sum, behind);
            arch::settle(sum);
            if (step % score_depth == score_depth - 1) {
              ROCFLASH_UNROLL
              for (int r = 0; r < Mma::results; ++r)
                (n < dp_at ? s : ds)[step / score_depth * Mma::results + r] = sum[r];
            }
          } else {
            constexpr int step = (n - dv_at) % sum_steps;
            if constexpr (!values && n == dk_at) {
              ROCFLASH_UNROLL
              for (int i = 0; i < at_once; ++i) slope(i);
            }
            typename Mma::Result& to_sum = (n < dk_at ? dv : dk).part[step % sum_parts][0];
            to_sum = Mma::multiply_around(
                left, (n < dk_at ? weights : slopes).step_[step / sum_parts], to_sum, behind);
          }
        });
  };

  int here = 0;
  // A tile that other waves of the workgroup see, and this one or not.
  const auto turn = [&]<bool sees>() {
    const int before = two ? 1 - here : 0;
    arch::barrier();
    if constexpr (sees) {
      multiply.template operator()<two ? 0 : s_at, all>(here, before);
    } else {
      if constexpr (two) {
        multiply.template operator()<0, s_at>(here, before);
        ROCFLASH_UNROLL
        for (int i = 0; i < stores; ++i) store_one(i, before);
      }
      load_q();
      load_dout();
      load_statistics();
      add_dq(0, Share::parts * Mma::results);
      Exchange(shared_ds[here]).write(PackedColumn<Mma, tile.streamed>());
      go_on();
    }
    if constexpr (two) {
      here = before;
    } else {
      arch::barrier();
      multiply.template operator()<0, s_at>(0, 0);
    }
  };

  if (tiles > 0) {
    load_q();
    load_dout();
    load_statistics();
    ROCFLASH_UNROLL
    for (int n = 0; n < stores; ++n) store_one(n, 0);
    if (two) {
      load_q();
      load_dout();
      load_statistics();
      Exchange(shared_ds[1]).write(PackedColumn<Mma, tile.streamed>());
    }
    // In loops of their own: where a branch joined them, the tile on its way would be copied and waited for.
    const auto tiles_to = [&](std::int32_t query) {
      const std::int32_t n = query < first_query ? 0 : (query - first_query) / tile.streamed;
      return arch::uniform(n < tiles ? n : tiles);
    };
    const std::int32_t begin = tiles_to(seen_by_any.begin),
                       end = tiles_to(seen_by_any.end + tile.streamed - 1);
    for (std::int32_t head = 0; head < group; ++head) {
      std::int32_t n = 0;
      for (; n < begin; ++n) turn.template operator()<false>();
      for (; n < end; ++n) turn.template operator()<true>();
      for (; n < tiles; ++n) turn.template operator()<false>();
    }
    if constexpr (two) {
      arch::barrier();
      multiply.template operator()<0, s_at>(here, 1 - here);
    }
    add_dq(0, Share::parts * Mma::results);
  }
  finish_keys<spec, true, values>(a, dk, dv);
}

}  // namespace rocflash::kernel
