// Backward without matrix instructions, in f32 arithmetic: for f32, and for head sizes that the schedules
// with matrix instructions do not have. Serves every GPU, dtype and option.
//
//   delta    per query, dout·out
//   queries  each workgroup owns a block of queries and a slice of dq's columns; keys stream past:
//              S = Q·Kᵀ, dP = dO·Vᵀ, dQ += dS·K
//   keys     each workgroup owns a block of keys of one key head, and a slice of the columns of dk or of
//            dv; queries of all heads of the group stream past:
//              S = K·Qᵀ, dP = V·dOᵀ, dK += dSᵀ·Q, or S alone and dV += Pᵀ·dO
//
// No two workgroups add to the same number: results have the same bits on every run.
#pragma once

#include "arch/arch.hpp"
#include "attention/work.hpp"
#include "wide/gradients.hpp"

namespace rocflash::kernel {

// One thread per query, in the order in which dP is added up: a query with all its weight on one key
// gets the very bits of dp.
template <KernelSpec spec>
void backward_wide_delta(const BackwardArguments& a) {
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t query = item.block * wide_tile(this_family, spec).owned + arch::thread();
  if (query >= sequence.sq) return;
  const std::int64_t row = sequence.q_row + query;
  const std::byte *dout = row_address(a.tensors.dout, p.dtype, sequence.batch, row, item.head),
                  *out = row_address(a.tensors.out, p.dtype, sequence.batch, row, item.head);
  const bool dout_aligned = starts_on_quads(a.tensors.dout),
             out_aligned = starts_on_quads(a.tensors.out);
  float sum = 0;
  for (int column = 0; column < p.value_dim; column += 4) {
    const Float4 x = four_at(dout, p.dtype, dout_aligned, column, p.value_dim),
                 y = four_at(out, p.dtype, out_aligned, column, p.value_dim);
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) sum = __builtin_fmaf(x[e], y[e], sum);
  }
  arch::store(&a.delta.at(sequence.batch, item.head, row),
              p.dropout.on() ? sum / p.dropout.scale() : sum);
}

// A wave's sums over [begin, end) of each term(n) times row(n), for columns [first, last) of a row of
// gradients. Terms of 0 do not count, whatever they would be multiplied with.
template <class Term, class Row>
float exact_sum(float sum, Span range, int column, bool there, DType dtype, Term term, Row row) {
  _Pragma("clang loop unroll(disable)") for (std::int32_t begin = range.begin; begin < range.end;
                                             begin += arch::wave_size) {
    const std::int32_t own = begin + arch::lane();
    const float mine = own < range.end ? term(own) : 0.0f;
    const std::int32_t left = range.end - begin;
    const std::int32_t count = left < arch::wave_size ? left : arch::wave_size;
    _Pragma("clang loop unroll(disable)") for (std::int32_t n = 0; n < count; ++n) {
      const float factor = arch::from_lane(mine, n);
      if (factor != 0 && there) sum += factor * number_at(row(begin + n), dtype, column);
    }
  }
  return sum;
}

// The end of a workgroup's work: sums times `factor` to rows in use. exact(row, column, there) computes
// a sum that is not finite again.
template <WideTile tile, class Exact>
void finish_gradients(const Rows& to, DType dtype, std::int64_t batch, std::int64_t first_row,
                      std::int32_t first, std::int32_t count, std::int64_t head, int columns_begin,
                      float factor, const Patch<tile.owned, tile.slice>& sums,
                      ROCFLASH_SHARED std::uint32_t* broken, Exact exact) {
  using Sums = Patch<tile.owned, tile.slice>;
  const int columns_end =
      columns_begin + tile.slice < to.columns ? columns_begin + tile.slice : to.columns;
  ROCFLASH_UNROLL
  for (int i = 0; i < Sums::own_rows; ++i) {
    const std::int32_t n = first + Sums::own_row(i);
    std::byte* row = row_address(to, dtype, batch, first_row + n, head);
    float probe = 0;  // NaN once something is not finite
    ROCFLASH_UNROLL
    for (int j = 0; j < Sums::own_columns; ++j) {
      const float x = sums.at[i][j / 4][j % 4];
      probe = __builtin_fmaf(x, 0.0f, probe);
      const int column = columns_begin + Sums::own_column(j);
      if (n < count && column < columns_end) store_number(row, dtype, column, x * factor);
    }
    const float probes = sum_of_sixteen(probe);
    if (thread_column() == 0) broken[Sums::own_row(i)] = n < count && probes != 0 ? 1 : 0;
  }
  arch::barrier();
  _Pragma("clang loop unroll(disable)") for (int n = arch::thread() / arch::wave_size;
                                             n < tile.owned; n += wide_threads / arch::wave_size) {
    if (!arch::any(broken[n] != 0)) continue;
    std::byte* row = row_address(to, dtype, batch, first_row + first + n, head);
    _Pragma("clang loop unroll(disable)") for (int begin = columns_begin; begin < columns_end;
                                               begin += arch::wave_size) {
      const int column = begin + arch::lane();
      const bool there = column < columns_end;
      const float x = exact(first + n, there ? column : begin, there);
      if (there) store_number(row, dtype, column, x);
    }
  }
}

inline float dropout_scale(const Problem& p) { return p.dropout.on() ? p.dropout.scale() : 1.0f; }

template <KernelSpec spec>
void backward_wide_queries(const BackwardArguments& a) {
  constexpr WideTile tile = wide_tile(this_family, spec);
  using Gradients = WideGradients<Owner::queries, GradientOf::product, tile>;
  using Scores = typename Gradients::Scores;
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::numbers];
  ROCFLASH_SHARED_ARRAY float shared_gradients[tile.streamed * line_length(tile.owned)];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  ROCFLASH_SHARED_ARRAY std::uint32_t broken[tile.owned];
  static_assert(RowCarrier<tile.slice, tile.depth>::numbers <= Gradients::numbers);

  const Problem& p = a.problem;
  const int slice = arch::group() / a.work.groups;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group() % a.work.groups);
  const SequenceView sequence(p, item.batch);
  const std::int32_t first = item.block * tile.owned;
  if (first >= sequence.sq) return;

  const SeenKeys keys(p.visibility, sequence, first, tile.owned);
  const Span seen = keys.by_any, seen_by_all = keys.by_all;
  const bool ragged = first + tile.owned > sequence.sq;
  typename Gradients::Memory memory(shared_lines);
  Gradients tiles(a, sequence, item.head, shared);
  tiles.own(first);
  Patch<tile.owned, tile.slice> sums;
  _Pragma("clang loop unroll(disable)") for (std::int32_t begin =
                                                 seen.begin / dropout_keys * dropout_keys;
                                             begin < seen.end; begin += tile.streamed) {
    const bool edge =
        ragged || begin < seen_by_all.begin || begin + tile.streamed > seen_by_all.end;
    Scores weights, gradients;
    tiles.compute(begin, edge, true, memory, weights, gradients);
    RowCarrier<tile.slice, tile.depth> carrier;
    carrier.load(tiles.k(), begin, slice * tile.slice);
    store_lines(gradients, shared_gradients);
    add_rows(sums, shared_gradients, tile.streamed, carrier, tiles.k(), begin, slice * tile.slice,
             memory);
  }

  const BackwardArguments& b = arch::again(a);
  const float factor = b.problem.scale * dropout_scale(b.problem);
  finish_gradients<tile>(
      b.tensors.dq, b.problem.dtype, sequence.batch, sequence.q_row, first, sequence.sq, item.head,
      slice * tile.slice, factor, sums, broken, [&](std::int32_t query, int column, bool there) {
        const QueryView view(b.problem.visibility, sequence, query);
        Span range;
        range.begin = view.begin;
        range.end = view.end;
        return exact_sum(
            0, range, column, there, b.problem.dtype,
            [&](std::int32_t key) {
              return exact_pair(b, sequence, item.head, query, key).gradient * factor;
            },
            [&](std::int32_t key) {
              return row_address(b.problem.k, b.problem.dtype, sequence.batch, sequence.k_row + key,
                                 b.problem.kv_head(item.head));
            });
      });
}

template <KernelSpec spec>
void backward_wide_keys(const BackwardArguments& a) {
  constexpr WideTile tile = wide_tile(this_family, spec);
  using Gradients = WideGradients<Owner::keys, GradientOf::product, tile>;
  using Scores = typename Gradients::Scores;
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::numbers];
  ROCFLASH_SHARED_ARRAY float shared_weights[tile.streamed * line_length(tile.owned)];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  ROCFLASH_SHARED_ARRAY std::uint32_t broken[tile.owned];
  static_assert(RowCarrier<tile.slice, tile.depth>::numbers <= Gradients::numbers);

  const Problem& p = a.problem;
  // Slices of dk come first.
  const int of_dk = a.tensors.dk ? (p.head_dim + tile.slice - 1) / tile.slice : 0;
  const int number = arch::group() / a.work.groups;
  const bool gives_dk = number < of_dk;
  const int column = (gives_dk ? number : number - of_dk) * tile.slice;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.kv_heads), arch::group() % a.work.groups);
  const SequenceView sequence(p, item.batch);
  const std::int32_t first = item.block * tile.owned;
  if (first >= sequence.sk) return;

  const SeeingQueries queries(p.visibility, sequence, first, tile.owned);
  const Span seeing = queries.any, all_see = queries.all;
  const bool ragged = first + tile.owned > sequence.sk;
  const auto group = static_cast<std::int32_t>(p.group());
  typename Gradients::Memory memory(shared_lines);
  Patch<tile.owned, tile.slice> sums;
  _Pragma("clang loop unroll(disable)") for (std::int32_t member = 0; member < group; ++member) {
    Gradients tiles(a, sequence, std::int64_t{item.head} * group + member, shared);
    if (member > 0) arch::barrier();
    tiles.own(first);
    _Pragma("clang loop unroll(disable)") for (std::int32_t begin = seeing.begin;
                                               begin < seeing.end; begin += tile.streamed) {
      const bool edge = ragged || begin < all_see.begin || begin + tile.streamed > all_see.end;
      Scores weights, gradients;
      tiles.compute(begin, edge, gives_dk, memory, weights, gradients);
      RowCarrier<tile.slice, tile.depth> carrier;
      const RowSource& rows = gives_dk ? tiles.q() : tiles.dout();
      carrier.load(rows, begin, column);
      store_lines(gives_dk ? gradients : weights, shared_weights);
      add_rows(sums, shared_weights, tile.streamed, carrier, rows, begin, column, memory);
    }
  }

  const BackwardArguments& b = arch::again(a);
  const float factor = (gives_dk ? b.problem.scale : 1.0f) * dropout_scale(b.problem);
  finish_gradients<tile>(gives_dk ? b.tensors.dk : b.tensors.dv, b.problem.dtype, sequence.batch,
                         sequence.k_row, first, sequence.sk, item.head, column, factor, sums,
                         broken, [&](std::int32_t key, int at, bool there) {
                           const KeyView view(b.problem.visibility, sequence, key);
                           Span range;
                           range.begin = view.begin;
                           range.end = view.end;
                           float sum = 0;
                           _Pragma("clang loop unroll(disable)") for (std::int32_t member = 0;
                                                                      member < group; ++member) {
                             const std::int64_t head = std::int64_t{item.head} * group + member;
                             sum = exact_sum(
                                 sum, range, at, there, b.problem.dtype,
                                 [&](std::int32_t query) {
                                   const ExactPair pair = exact_pair(b, sequence, head, query, key);
                                   return (gives_dk ? pair.gradient : pair.weight) * factor;
                                 },
                                 [&](std::int32_t query) {
                                   return row_address(gives_dk ? b.problem.q : b.tensors.dout,
                                                      b.problem.dtype, sequence.batch,
                                                      sequence.q_row + query, head);
                                 });
                           }
                           return sum;
                         });
}

}  // namespace rocflash::kernel
