// Main backward kernel on NVIDIA GPUs from sm_80 on. A workgroup owns a block of keys of one KV
// head, and the query tiles of the GQA group stream through shared memory (cp.async):
//
//   S = Q·Kᵀ   dP = dO·Vᵀ       queries by keys, divided among the warps
//   P, dS                       rounded, to shared memory
//   dV += Pᵀ·dO   dK += dSᵀ·Q   keys by columns, accumulators in registers
//   dQ = dS·K                   queries by columns, added to the f32 accumulator with atomics
//                               (dq_accumulator.hpp). backward_dkdv omits it and is deterministic.
//
// Each product has its own partition among the warps, 32 rows each, so that two A fragments share
// each B fragment: shared-memory bandwidth limits this kernel next to the products.
//
// With three stages one barrier per iteration is enough: after it P and dS are visible, the next
// tile has arrived, and the stage of the previous tile is free. Two stages take a second barrier,
// one stage a third.
#pragma once

#include "arch/arch.hpp"
#include "attention/cp_async_rows.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "backward/dq_accumulator.hpp"
#include "backward/sm80_dkdv.hpp"
#include "backward/sm80_scores.hpp"
#include "table/backward.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

// Iterates over query tiles in [first, end), one head after the other, from tile `start` of each
// head on.
template <int streamed>
struct QueryTileIterator {
  std::int32_t head, query;

  void next(std::int32_t first, std::int32_t end, std::int32_t start) {
    query += streamed;
    if (query >= end) query = first;
    if (query == start) ++head;
  }
};

// Computes P and dS of a query tile, and stores them to shared memory, rounded. `edge`: the tile
// needs a mask.
template <KernelSpec spec, class Position, class Options>
void compute_p_and_ds(const BackwardArguments& a, const Options& options,
                      const SequenceView& sequence, Position now, std::int32_t block_begin,
                      bool edge, std::uint32_t buffer, std::uint32_t half, int lane, int warp) {
  using Types = KeyBlockTypes<spec>;
  using Scores = typename Types::Scores;
  using Rows = typename Types::Rows;
  using Mma = typename Types::Mma;
  using Unit = typename Types::Unit;
  const Problem& p = a.problem;
  // The warp tile of S and dP.
  const int score_row = warp % Types::score_warps * Scores::rows,
            score_column = warp / Types::score_warps * Scores::columns;
  float base[Scores::lane_rows];
  [[maybe_unused]] float share[Scores::lane_rows];
  ROCFLASH_UNROLL
  for (int i = 0; i < Scores::lane_rows; ++i) {
    const int row = score_row + Scores::row(lane, i);
    const float lse = arch::load_shared_float(Types::lse(buffer, row));
    if constexpr (Types::generic) {
      const RowSoftmax softmax = RowSoftmax::of_products(a, sequence.batch, now.head,
                                                         sequence.q_row + now.query + row, lse);
      base[i] = softmax.base;
      share[i] = softmax.share;
    } else {
      base[i] = resolved_lse(lse, Unit::from_natural);
    }
  }
  const auto delta_of = [&](int i) {
    return arch::load_shared_float(Types::delta(buffer, score_row + Scores::row(lane, i)));
  };
  const std::int32_t first_key = block_begin + score_column;
  const auto mask_in = [&](Scores& tile_part, float masked) {
    for_each<Scores::lane_rows>([&](int i) {
      const Words2 keys =
          arch::load_shared8(Types::visible(buffer, score_row + Scores::row(lane, i)));
      QueryView query;
      query.begin = static_cast<std::int32_t>(keys.x);
      query.end = static_cast<std::int32_t>(keys.y);
      apply_mask(query, first_key, lane, i, tile_part, masked);
    });
  };
  const SharedAddress left = operand_address<Rows>(Types::q(buffer) + Types::rows(score_row),
                                                   matrices_down(lane)),
                      right = operand_address<Rows>(Types::k() + Types::rows(score_column),
                                                    matrices_across(lane));
  const KMajorA<Mma, Rows> q{left}, dout{left + Types::dout_after_q};
  const KMajorB<Mma, Rows> k{right}, v{right + Types::v_after_k};
  const SharedAddress own_p = Types::own_weights(Types::p(half), score_row, score_column, lane),
                      own_ds = own_p + Types::ds_after_p;
  Scores s = {}, d = {};
  add_product<spec.bucket>(s, q, k);
  if constexpr (Types::generic) {
    add_product<spec.bucket>(d, dout, v);
    for_each<Scores::lane_rows>([&](int i) {
      const ScoreRow row{now.query + score_row + Scores::row(lane, i), base[i], delta_of(i),
                         share[i]};
      compute_ds_row(options, p, sequence, now.head, first_key, lane, row, i, s, d);
    });
    if (edge) {
      mask_in(s, 0);
      mask_in(d, 0);
    }
    Types::template store_weights<0, Types::pairs>(own_p, s);
  } else {
    if (edge) mask_in(s, __builtin_copysignf(infinity, -options.unit));
    // P is computed and stored between the steps of the second product.
    constexpr int steps = spec.bucket / (Mma::depth * Mma::together), pairs = Types::pairs;
    static_for<steps>([&](auto step) {
      add_steps(d, dout, v, step.value * Mma::together);
      constexpr int from = step.value * pairs / steps, to = (step.value + 1) * pairs / steps;
      ROCFLASH_UNROLL
      for (int n = 2 * from; n < 2 * to; ++n) {
        const int i = Types::pair_row(n / 2);
        float& x = s.at(i, 2 * Types::pair_column(n / 2) + n % 2);
        x = Unit::fine_exp(__builtin_fmaf(x, options.unit, -base[i]));
      }
      Types::template store_weights<from, to>(own_p, s);
    });
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::lane_rows; ++i) {
      const float delta = delta_of(i);
      ROCFLASH_UNROLL
      for (int n = 0; n < Scores::lane_columns; ++n) d.at(i, n) = s.at(i, n) * (d.at(i, n) - delta);
    }
    if (edge) mask_in(d, 0);
  }
  Types::template store_weights<0, Types::pairs>(own_ds, d);
}

// dQ = dS·K of a query tile, added to the accumulator, and dK += dSᵀ·Q.
template <KernelSpec spec, class Position>
void add_dq_and_dk(const BackwardArguments& a, const SequenceView& sequence, Position now,
                   std::uint32_t buffer, std::uint32_t half, int lane, int warp,
                   typename KeyBlockTypes<spec>::DkDvTile& dk) {
  using Types = KeyBlockTypes<spec>;
  using Weights = typename Types::Weights;
  using Mma = typename Types::Mma;
  constexpr BackwardTile tile = Types::tile;
  constexpr int streamed = tile.streamed;
  const auto ds_by_keys = Types::weights_by_keys(Types::ds(half), warp, lane);
  const auto q_columns = Types::columns_of(Types::q(buffer), Types::key_column(warp), lane);
  if constexpr (Types::fused) {  // dQ = dS·K
    using Sums = typename Types::DqTile;
    const int row = warp % Types::query_warps * Sums::rows,
              column = warp / Types::query_warps * Sums::columns;
    Sums dq = {};
    const SharedAddress left = operand_address<Weights>(
        Types::ds(half) + static_cast<std::uint32_t>(row * Weights::bytes), matrices_down(lane));
    add_product<tile.owned>(dq, KMajorA<Mma, Weights>{left},
                            Types::columns_of(Types::k(), column, lane));
    // dK += dSᵀ·Q, interleaved with the atomic adds of dQ.
    const DqAccumulator sums(a, sequence, now.head);
    constexpr int steps = streamed / (Mma::depth * Mma::together);
    [[maybe_unused]] StepOperands<typename Types::DkDvTile> now_used, next_used;
    if constexpr (Mma::together == 1) next_used.load(ds_by_keys, q_columns, 0);
    static_for<steps>([&](auto step) {
      if constexpr (Mma::together == 1) {
        now_used = next_used;
        if constexpr (step.value + 1 < steps) next_used.load(ds_by_keys, q_columns, step.value + 1);
        now_used.multiply(dk);
      } else {
        add_steps(dk, ds_by_keys, q_columns, step.value * Mma::together);
      }
      ROCFLASH_UNROLL
      for (int part = 0; part < Sums::row_parts; ++part) {
        const std::int32_t query = now.query + row + part * Mma::rows;
        const bool in_bounds = query < sequence.sq;
        float* to = sums.block(query, column / DqAccumulator::columns);
        ROCFLASH_UNROLL
        for (int n = step.value * Sums::column_parts / steps;
             n < (step.value + 1) * Sums::column_parts / steps; ++n) {
          ROCFLASH_UNROLL
          for (int r = 0; r < Mma::results; ++r)
            arch::add(to + n * DqAccumulator::block_floats + r * arch::wave_size,
                      dq.part[part][n].at[r], in_bounds);
        }
      }
    });
  } else {
    add_product<streamed>(dk, ds_by_keys, q_columns);
  }
}

template <KernelSpec spec>
void main_dk_dv(const BackwardArguments& a) {
  using Types = KeyBlockTypes<spec>;
  constexpr BackwardTile tile = Types::tile;
  constexpr int buffers = tile.buffers, streamed = tile.streamed;

  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.kv_heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = Types::block_begin(a, item);
  if (block_begin >= sequence.sk) return;

  // The queries that attend to any key of the block, aligned to accumulator blocks, and those that
  // attend to all: their tiles need no mask. Out-of-bounds keys are masked.
  const AttendingQueries attending(p.visibility, sequence, block_begin, tile.owned);
  const auto first_query = static_cast<std::int32_t>(attending.any.begin / DqAccumulator::rows *
                                                     DqAccumulator::rows),
             end_query = static_cast<std::int32_t>(attending.any.end);
  const Span common = block_begin + tile.owned > sequence.sk ? Range{} : attending.all;
  const auto is_edge = [&](std::int32_t query) {
    return query < common.begin || query + streamed > common.end;
  };
  const auto gqa_group = static_cast<std::int32_t>(p.gqa_group());
  const std::int32_t first_head = item.head * gqa_group,
                     end_head = attending.any.empty() ? first_head : first_head + gqa_group;

  // Workgroups start with different tiles, so that they do not contend for the same dQ lines.
  const std::int32_t tiles = (end_query - first_query + streamed - 1) / streamed;
  const std::int32_t start =
      tiles > 0 ? first_query + block_begin / tile.owned % tiles * streamed : first_query;
  // Issues the cp.async copies of a query tile and its row statistics.
  using Iterator = QueryTileIterator<streamed>;
  const auto load_tile = [&](Iterator position, std::uint32_t buffer) {
    if (position.head < end_head) {
      using Copy = typename Types::template Copy<streamed>;
      const std::int32_t left = sequence.sq - position.query;
      const std::int64_t row = sequence.q_row + position.query;
      Copy(p.q, 0, sequence.batch, row, position.head).next(Types::q(buffer), left);
      Copy(t.dout, 0, sequence.batch, row, position.head).next(Types::dout(buffer), left);
      const int thread = arch::opaque_thread(), n = thread % streamed;
      if (thread < 2 * streamed) {
        const RowStatistic& from = thread < streamed ? t.lse : a.delta;
        arch::cp_async4(thread < streamed ? Types::lse(buffer, n) : Types::delta(buffer, n),
                        &from.at(sequence.batch, position.head, row + (n < left ? n : 0)),
                        n < left);
      }
      if (is_edge(position.query) && thread < streamed) {
        const QueryView query(p.visibility, sequence, position.query + n);
        arch::store_shared(
            Types::visible(buffer, n),
            Words2{static_cast<std::uint32_t>(query.begin), static_cast<std::uint32_t>(query.end)});
      }
    }
    arch::cp_async_commit();
  };
  const auto after = [&](Iterator position) {
    position.next(first_query, end_query, start);
    return position;
  };

  {
    using Copy = typename Types::template Copy<tile.owned>;
    const std::int64_t row = sequence.k_row + block_begin;
    const std::int32_t left = sequence.sk - block_begin;
    Copy(p.k, 0, sequence.batch, row, item.head).next(Types::k(), left);
    Copy(p.v, 0, sequence.batch, row, item.head).next(Types::v(), left);
  }
  const Iterator first_position{first_head, start};
  load_tile(first_position, 0);
  if (buffers > 1) load_tile(after(first_position), 1);
  arch::cp_async_wait<(buffers > 1 ? 1 : 0)>();
  arch::barrier();

  using Unit = typename Types::Unit;
  const ScoreOptions<spec.variant, Unit> options(p);
  typename Types::DkDvTile dk = {}, dv = {};

  std::uint32_t buffer = 0, half = 0;  // of the queries, of the weights
  for (Iterator now = first_position; now.head < end_head;
       now.next(first_query, end_query, start)) {
    const int thread = arch::opaque_thread(), lane = thread % arch::wave_size,
              warp = thread / arch::wave_size;
    compute_p_and_ds<spec>(a, options, sequence, now, block_begin, is_edge(now.query), buffer, half,
                           lane, warp);
    if constexpr (buffers == 3) arch::cp_async_wait<0>();
    arch::barrier();
    if constexpr (buffers == 3) load_tile(after(after(now)), buffer == 0 ? 2 : buffer - 1);

    {  // dV += Pᵀ·dO
      add_product<streamed>(dv, Types::weights_by_keys(Types::p(half), warp, lane),
                            Types::columns_of(Types::dout(buffer), Types::key_column(warp), lane));
    }
    add_dq_and_dk<spec>(a, sequence, now, buffer, half, lane, warp, dk);

    if constexpr (buffers == 2) {
      arch::cp_async_wait<0>();
      arch::barrier();
      load_tile(after(after(now)), buffer);
    } else if constexpr (buffers == 1) {
      arch::barrier();
      load_tile(after(now), 0);
      arch::cp_async_wait<0>();
      arch::barrier();
    }
    buffer = buffer + 1 == buffers ? 0 : buffer + 1;
    if constexpr (buffers == 3) half = 1 - half;
  }
  epilogue_dk_dv<spec>(a, dk, dv);
}

template <KernelSpec spec>
void backward_fused(const BackwardArguments& a) {
  main_dk_dv<spec>(a);
}
template <KernelSpec spec>
void backward_fused_large_smem(const BackwardArguments& a) {
  main_dk_dv<spec>(a);
}
template <KernelSpec spec>
void backward_dkdv(const BackwardArguments& a) {
  main_dk_dv<spec>(a);
}

}  // namespace rocflash::kernel
