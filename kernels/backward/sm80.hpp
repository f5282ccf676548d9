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

// The turns of the loop: tiles of queries from `first` to `end`, of one head after the other.
template <int streamed>
struct Turn {
  std::int32_t head, query;

  void next(std::int32_t first, std::int32_t end) {
    query += streamed;
    if (query >= end) {
      query = first;
      ++head;
    }
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

  // Starts the copies of a tile of queries and of what belongs to them.
  using Now = Turn<streamed>;
  Now ahead{first_head, first_query};
  const auto copy_next = [&](std::uint32_t buffer) {
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
      ahead.next(first_query, end_query);
    }
    arch::commit_copies();
  };

  {
    using Copy = typename Types::template Copy<tile.owned>;
    const std::int64_t row = sequence.k_row + block_begin;
    const std::int32_t left = sequence.sk - block_begin;
    Copy(p.k, 0, sequence.batch, row, item.head).next(Types::k(), left);
    Copy(p.v, 0, sequence.batch, row, item.head).next(Types::v(), left);
  }
  copy_next(0);
  if (buffers > 1) copy_next(1);
  arch::wait_for_copies<(buffers > 1 ? 1 : 0)>();
  arch::barrier();

  const ScoreOptions<spec.variant> options(p);
  typename Types::KeySums dk = {}, dv = {};

  std::uint32_t buffer = 0, half = 0;  // of the queries, of the weights
  for (Now now{first_head, first_query}; now.head < end_head; now.next(first_query, end_query)) {
    const int thread = arch::renewed_thread(), lane = thread % arch::wave_size,
              warp = thread / arch::wave_size;
    // Which part of S and dP this warp computes.
    const int score_row = warp % Types::score_warps * Scores::rows,
              score_column = warp / Types::score_warps * Scores::columns;
    {
      Scores s = {}, d = {};
      const SharedAddress left = operand_address<Rows>(Types::q(buffer) + Types::rows(score_row),
                                                       matrices_down(lane)),
                          right = operand_address<Rows>(Types::k() + Types::rows(score_column),
                                                        matrices_across(lane));
      add_product<spec.bucket>(s, LeftRows<Mma, Rows>{left}, RightRows<Mma, Rows>{right});
      add_product<spec.bucket>(d, LeftRows<Mma, Rows>{left + Types::dout_after_q},
                               RightRows<Mma, Rows>{right + Types::v_after_k});

      const std::int32_t first_key = block_begin + score_column;
      for_each<Scores::lane_rows>([&](int i) {
        const int n = score_row + Scores::row(lane, i);
        const ScoreRow row{now.query + n,
                           statistic(arch::load_shared_float(Types::lse(buffer, n)), log2_e),
                           arch::load_shared_float(Types::delta(buffer, n))};
        differentiate_row(options, p, sequence, now.head, first_key, lane, row, i, s, d);
      });
      if (is_edge(now.query)) {
        for_each<Scores::lane_rows>([&](int i) {
          const Words2 keys =
              arch::load_shared8(Types::seen(buffer, score_row + Scores::row(lane, i)));
          QueryView query;
          query.begin = static_cast<std::int32_t>(keys.x);
          query.end = static_cast<std::int32_t>(keys.y);
          hide_keys(query, first_key, lane, i, s, d);
        });
      }
      Types::store_weights(Types::p(half), score_row, score_column, lane, s);
      Types::store_weights(Types::ds(half), score_row, score_column, lane, d);
    }
    if constexpr (buffers == 3) arch::wait_for_copies<0>();
    arch::barrier();
    if constexpr (buffers == 3) copy_next(buffer == 0 ? 2 : buffer - 1);

    {  // dV += Pᵀ·dO
      const SharedAddress left = Types::weights_by_keys(Types::p(half), warp, lane),
                          right =
                              Types::columns_of(Types::dout(buffer), Types::key_column(warp), lane);
      add_product<streamed>(dv, LeftColumns<Mma, Weights>{left}, RightColumns<Mma, Rows>{right});
    }
    const LeftColumns<Mma, Weights> ds_by_keys{Types::weights_by_keys(Types::ds(half), warp, lane)};
    const RightColumns<Mma, Rows> q_columns{
        Types::columns_of(Types::q(buffer), Types::key_column(warp), lane)};
    if constexpr (Types::fused) {  // dQ = dS·K
      using Sums = typename Types::QuerySums;
      const int row = warp % Types::query_warps * Sums::rows,
                column = warp / Types::query_warps * Sums::columns;
      Sums dq = {};
      const SharedAddress left = operand_address<Weights>(
          Types::ds(half) + static_cast<std::uint32_t>(row * Weights::bytes), matrices_down(lane));
      add_product<tile.owned>(dq, LeftRows<Mma, Weights>{left},
                              RightColumns<Mma, Rows>{Types::columns_of(Types::k(), column, lane)});
      // dK += dSᵀ·Q, and between its steps the sums of dq.
      const DqSums sums(a, sequence, now.head);
      constexpr int steps = streamed / Mma::depth;
      ROCFLASH_UNROLL
      for (int step = 0; step < steps; ++step) {
        add_step(dk, ds_by_keys, q_columns, step);
        ROCFLASH_UNROLL
        for (int part = 0; part < Sums::row_parts; ++part) {
          const std::int32_t query = now.query + row + part * Mma::rows;
          const bool there = query < sequence.sq;
          float* to = sums.block(query, column / DqSums::columns);
          ROCFLASH_UNROLL
          for (int n = step * Sums::column_parts / steps;
               n < (step + 1) * Sums::column_parts / steps; ++n) {
            ROCFLASH_UNROLL
            for (int r = 0; r < Mma::results; ++r)
              arch::add(to + n * DqSums::block_floats + r * arch::wave_size, dq.part[part][n].at[r],
                        there);
          }
        }
      }
    } else {
      add_product<streamed>(dk, ds_by_keys, q_columns);
    }

    if constexpr (buffers == 2) {
      arch::wait_for_copies<0>();
      arch::barrier();
      copy_next(buffer);
    } else if constexpr (buffers == 1) {
      arch::barrier();
      copy_next(0);
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
void backward_fused_wide(const BackwardArguments& a) {
  own_keys<spec>(a);
}
template <KernelSpec spec>
void backward_keys(const BackwardArguments& a) {
  own_keys<spec>(a);
}

}  // namespace rocflash::kernel
