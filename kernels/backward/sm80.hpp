// Backward on NVIDIA GPUs from sm_80 on, by workgroups that own a block of keys of one key head. Queries of
// all its heads stream past, a tile at a time:
//
//   S = Q·Kᵀ   dP = dO·Vᵀ     queries by keys; the warps share them out
//   P, dS                     from those, rounded, to shared memory
//   dV += Pᵀ·dO   dK += dSᵀ·Q   keys by columns, in registers all the time
//   dQ = dS·K                 queries by columns: added to f32 sums in global memory (dq_sums.hpp), in any
//                             order. backward_keys leaves it out, and has the same bits every time.
//
// Each product has its own division among the warps, 32 rows each, so that two fragments of the left operand
// share each fragment of the right one: what limits this kernel beside the products is how fast shared
// memory is read.
//
// With three tiles of queries in shared memory a turn of the loop needs one barrier: behind it P and dS are
// there, the next tile has arrived, and the tile before is not read any more, so that the one after next may
// take its place. With two tiles the end of a turn takes a second barrier, with one a third.
#pragma once

#include "arch/arch.hpp"
#include "attention/async_rows.hpp"
#include "attention/sequence.hpp"
#include "attention/work.hpp"
#include "backward/dq_sums.hpp"
#include "backward/gradient.hpp"
#include "backward/sm80_keys.hpp"
#include "backward/sm80_scores.hpp"
#include "table/backward.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

// The turns of the loop: tiles of queries from `first` to `end`, of one head after the other. `start` is each
// head's first tile.
template <int streamed>
struct Turn {
  std::int32_t head, query;

  void next(std::int32_t first, std::int32_t end, std::int32_t start) {
    query += streamed;
    if (query >= end) query = first;
    if (query == start) ++head;
  }
};

template <KernelSpec spec>
void own_keys(const BackwardArguments& a) {
  using Types = KeyBlockTypes<spec>;
  using Scores = typename Types::Scores;
  using Rows = typename Types::Rows;
  using Weights = typename Types::Weights;
  using Mma = typename Types::Mma;
  constexpr BackwardTile tile = Types::tile;
  constexpr int buffers = tile.buffers, streamed = tile.streamed;

  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.kv_heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = Types::block_begin(a, item);
  if (block_begin >= sequence.sk) return;

  // The queries that see some of the keys, from a block of the sums on, and those that see all: tiles of
  // these need no mask. Keys that are not in use are hidden as others are.
  const SeeingQueries seeing(p.visibility, sequence, block_begin, tile.owned);
  const auto first_query =
                 static_cast<std::int32_t>(seeing.any.begin / DqSums::rows * DqSums::rows),
             end_query = static_cast<std::int32_t>(seeing.any.end);
  const Span common = block_begin + tile.owned > sequence.sk ? Range{} : seeing.all;
  const auto is_edge = [&](std::int32_t query) {
    return query < common.begin || query + streamed > common.end;
  };
  const auto group = static_cast<std::int32_t>(p.group());
  const std::int32_t first_head = item.head * group,
                     end_head = seeing.any.empty() ? first_head : first_head + group;

  // Workgroups start with different tiles, so that they do not all add to the same lines at a time.
  const std::int32_t tiles = (end_query - first_query + streamed - 1) / streamed;
  const std::int32_t start =
      tiles > 0 ? first_query + block_begin / tile.owned % tiles * streamed : first_query;
  // Starts the copies of a tile of queries and of what belongs to them.
  using Now = Turn<streamed>;
  const auto copy_turn = [&](Now ahead, std::uint32_t buffer) {
    if (ahead.head < end_head) {
      using Copy = typename Types::template Copy<streamed>;
      const std::int32_t left = sequence.sq - ahead.query;
      const std::int64_t row = sequence.q_row + ahead.query;
      Copy(p.q, 0, sequence.batch, row, ahead.head).next(Types::q(buffer), left);
      Copy(t.dout, 0, sequence.batch, row, ahead.head).next(Types::dout(buffer), left);
      const int thread = arch::renewed_thread(), n = thread % streamed;
      if (thread < 2 * streamed) {
        const RowStatistic& from = thread < streamed ? t.lse : a.delta;
        arch::copy_async4(thread < streamed ? Types::lse(buffer, n) : Types::delta(buffer, n),
                          &from.at(sequence.batch, ahead.head, row + (n < left ? n : 0)), n < left);
      }
      if (is_edge(ahead.query) && thread < streamed) {
        const QueryView query(p.visibility, sequence, ahead.query + n);
        arch::store_shared(Types::seen(buffer, n), Words2{static_cast<std::uint32_t>(query.begin),
                                                          static_cast<std::uint32_t>(query.end)});
      }
    }
    arch::commit_copies();
  };
  const auto after = [&](Now turn) {
    turn.next(first_query, end_query, start);
    return turn;
  };

  {
    using Copy = typename Types::template Copy<tile.owned>;
    const std::int64_t row = sequence.k_row + block_begin;
    const std::int32_t left = sequence.sk - block_begin;
    Copy(p.k, 0, sequence.batch, row, item.head).next(Types::k(), left);
    Copy(p.v, 0, sequence.batch, row, item.head).next(Types::v(), left);
  }
  const Now first_turn{first_head, start};
  copy_turn(first_turn, 0);
  if (buffers > 1) copy_turn(after(first_turn), 1);
  arch::wait_for_copies<(buffers > 1 ? 1 : 0)>();
  arch::barrier();

  using Unit = typename Types::Unit;
  const ScoreOptions<spec.variant, Unit> options(p);
  typename Types::KeySums dk = {}, dv = {};

  std::uint32_t buffer = 0, half = 0;  // of the queries, of the weights
  for (Now now = first_turn; now.head < end_head; now.next(first_query, end_query, start)) {
    const int thread = arch::renewed_thread(), lane = thread % arch::wave_size,
              warp = thread / arch::wave_size;
    // Which part of S and dP this warp computes.
    const int score_row = warp % Types::score_warps * Scores::rows,
              score_column = warp / Types::score_warps * Scores::columns;
    {
      float lse[Scores::lane_rows];
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::lane_rows; ++i)
        lse[i] =
            statistic(arch::load_shared_float(Types::lse(buffer, score_row + Scores::row(lane, i))),
                      Unit::of_natural);
      const auto delta_of = [&](int i) {
        return arch::load_shared_float(Types::delta(buffer, score_row + Scores::row(lane, i)));
      };
      const bool edge = is_edge(now.query);
      const std::int32_t first_key = block_begin + score_column;
      const auto hide_in = [&](Scores& tile_part, float hidden) {
        for_each<Scores::lane_rows>([&](int i) {
          const Words2 keys =
              arch::load_shared8(Types::seen(buffer, score_row + Scores::row(lane, i)));
          QueryView query;
          query.begin = static_cast<std::int32_t>(keys.x);
          query.end = static_cast<std::int32_t>(keys.y);
          hide_keys(query, first_key, lane, i, tile_part, hidden);
        });
      };
      const SharedAddress left = operand_address<Rows>(Types::q(buffer) + Types::rows(score_row),
                                                       matrices_down(lane)),
                          right = operand_address<Rows>(Types::k() + Types::rows(score_column),
                                                        matrices_across(lane));
      const LeftRows<Mma, Rows> q{left}, dout{left + Types::dout_after_q};
      const RightRows<Mma, Rows> k{right}, v{right + Types::v_after_k};
      const SharedAddress own_p = Types::own_weights(Types::p(half), score_row, score_column, lane),
                          own_ds = own_p + Types::ds_after_p;
      Scores s = {}, d = {};
      add_product<spec.bucket>(s, q, k);
      if constexpr (Types::full) {
        add_product<spec.bucket>(d, dout, v);
        for_each<Scores::lane_rows>([&](int i) {
          const ScoreRow row{now.query + score_row + Scores::row(lane, i), lse[i], delta_of(i)};
          differentiate_row(options, p, sequence, now.head, first_key, lane, row, i, s, d);
        });
        if (edge) {
          hide_in(s, 0);
          hide_in(d, 0);
        }
        Types::template store_weights<0, Types::pairs>(own_p, s);
      } else {
        if (edge) hide_in(s, __builtin_copysignf(infinity, -options.unit));
        // Weights are computed and stored between the steps of the second product.
        constexpr int steps = spec.bucket / (Mma::depth * Mma::together), pairs = Types::pairs;
        static_for<steps>([&](auto step) {
          add_steps(d, dout, v, step.value * Mma::together);
          constexpr int from = step.value * pairs / steps, to = (step.value + 1) * pairs / steps;
          ROCFLASH_UNROLL
          for (int n = 2 * from; n < 2 * to; ++n) {
            const int i = Types::pair_row(n / 2);
            float& x = s.at(i, 2 * Types::pair_column(n / 2) + n % 2);
            x = Unit::fine_exp(__builtin_fmaf(x, options.unit, -lse[i]));
          }
          Types::template store_weights<from, to>(own_p, s);
        });
        ROCFLASH_UNROLL
        for (int i = 0; i < Scores::lane_rows; ++i) {
          const float delta = delta_of(i);
          ROCFLASH_UNROLL
          for (int n = 0; n < Scores::lane_columns; ++n)
            d.at(i, n) = s.at(i, n) * (d.at(i, n) - delta);
        }
        if (edge) hide_in(d, 0);
      }
      Types::template store_weights<0, Types::pairs>(own_ds, d);
    }
    if constexpr (buffers == 3) arch::wait_for_copies<0>();
    arch::barrier();
    if constexpr (buffers == 3) copy_turn(after(after(now)), buffer == 0 ? 2 : buffer - 1);

    {  // dV += Pᵀ·dO
      add_product<streamed>(dv, Types::weights_by_keys(Types::p(half), warp, lane),
                            Types::columns_of(Types::dout(buffer), Types::key_column(warp), lane));
    }
    const auto ds_by_keys = Types::weights_by_keys(Types::ds(half), warp, lane);
    const auto q_columns = Types::columns_of(Types::q(buffer), Types::key_column(warp), lane);
    if constexpr (Types::fused) {  // dQ = dS·K
      using Sums = typename Types::QuerySums;
      const int row = warp % Types::query_warps * Sums::rows,
                column = warp / Types::query_warps * Sums::columns;
      Sums dq = {};
      const SharedAddress left = operand_address<Weights>(
          Types::ds(half) + static_cast<std::uint32_t>(row * Weights::bytes), matrices_down(lane));
      add_product<tile.owned>(dq, LeftRows<Mma, Weights>{left},
                              Types::columns_of(Types::k(), column, lane));
      // dK += dSᵀ·Q, and between its steps the sums of dq.
      const DqSums sums(a, sequence, now.head);
      constexpr int steps = streamed / (Mma::depth * Mma::together);
      [[maybe_unused]] StepOperands<typename Types::KeySums> now_used, next_used;
      if constexpr (Mma::together == 1) next_used.load(ds_by_keys, q_columns, 0);
      static_for<steps>([&](auto step) {
        if constexpr (Mma::together == 1) {
          now_used = next_used;
          if constexpr (step.value + 1 < steps)
            next_used.load(ds_by_keys, q_columns, step.value + 1);
          now_used.multiply(dk);
        } else {
          add_steps(dk, ds_by_keys, q_columns, step.value * Mma::together);
        }
        ROCFLASH_UNROLL
        for (int part = 0; part < Sums::row_parts; ++part) {
          const std::int32_t query = now.query + row + part * Mma::rows;
          const bool there = query < sequence.sq;
          float* to = sums.block(query, column / DqSums::columns);
          ROCFLASH_UNROLL
          for (int n = step.value * Sums::column_parts / steps;
               n < (step.value + 1) * Sums::column_parts / steps; ++n) {
            ROCFLASH_UNROLL
            for (int r = 0; r < Mma::results; ++r)
              arch::add(to + n * DqSums::block_floats + r * arch::wave_size, dq.part[part][n].at[r],
                        there);
          }
        }
      });
    } else {
      add_product<streamed>(dk, ds_by_keys, q_columns);
    }

    if constexpr (buffers == 2) {
      arch::wait_for_copies<0>();
      arch::barrier();
      copy_turn(after(after(now)), buffer);
    } else if constexpr (buffers == 1) {
      arch::barrier();
      copy_turn(after(now), 0);
      arch::wait_for_copies<0>();
      arch::barrier();
    }
    buffer = buffer + 1 == buffers ? 0 : buffer + 1;
    if constexpr (buffers == 3) half = 1 - half;
  }
  finish_keys<spec>(a, dk, dv);
}

template <KernelSpec spec>
void backward_fused(const BackwardArguments& a) {
  own_keys<spec>(a);
}
template <KernelSpec spec>
void backward_fused_large(const BackwardArguments& a) {
  own_keys<spec>(a);
}
template <KernelSpec spec>
void backward_keys(const BackwardArguments& a) {
  own_keys<spec>(a);
}

}  // namespace rocflash::kernel
