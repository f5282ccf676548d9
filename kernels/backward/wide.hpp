// Backward in f32 arithmetic: for f32, and for head sizes that the schedules
// with matrix instructions do not have. Serves every GPU, dtype and option.
//
//   delta    per query, dout·out
//   queries  each workgroup owns a block of queries and a slice of dq's columns; keys stream past:
//              S = Q·Kᵀ, dP = dO·Vᵀ, dQ += dS·K
//   dk, dv   each workgroup owns a block of keys of one key head, and a slice of the result's columns;
//            queries of all heads of the group stream past:
//              S = K·Qᵀ, dP = V·dOᵀ, dK += dSᵀ·Q, or S alone and dV += Pᵀ·dO
//
// No two workgroups add to the same number: results have the same bits on every run.
#pragma once

#include "arch/arch.hpp"
#include "attention/work.hpp"
#include "wide/gradients.hpp"

namespace rocflash::kernel {

// One thread per query, in the order in which dP is added up: a query with all its weight on one key
// gets the very bits of dp. Dropout's scale is taken from each number of out, not from the sum, so that
// products are those of dp there too, but for the last bit.
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
  const QuadLoads dout_loads(a.tensors.dout, p.dtype), out_loads(a.tensors.out, p.dtype);
  const float unscaled = p.dropout.on() ? 1 - p.dropout.p : 1.0f;
  float sum = 0;
  for (int column = 0; column < p.value_dim; column += 4) {
    const Float4 x = dout_loads.widened(dout_loads.load(dout, column, p.value_dim)),
                 y = out_loads.widened(out_loads.load(out, column, p.value_dim)) * unscaled;
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) sum = __builtin_fmaf(x[e], y[e], sum);
  }
  if (may_differ_from_value(p)) {
    const OnlyKey only = only_key(p, sequence, query, [&](std::int32_t key) {
      return exact_terms(a, sequence, item.head, query, key);
    });
    if (only.key >= 0) sum = only.dp;
  }
  arch::store(&a.delta.at(sequence.batch, item.head, row), sum);
}

// A wave's sum over [from, end) of each term(n) times a column of row(n), added to `sum`: each lane
// computes one term at a time and has a column of its own. Terms of 0 do not count, whatever they would be multiplied with.
template <class Term, class Row>
float exact_sum(float sum, std::int32_t from, std::int32_t end, int column, bool there, DType dtype,
                Term term, Row row) {
  _Pragma("clang loop unroll(disable)") for (std::int32_t begin = from; begin < end;
                                             begin += arch::wave_size) {
    const std::int32_t own = begin + arch::lane();
    const float mine = own < end ? term(own) : 0.0f;
    const std::int32_t left = end - begin;
    const std::int32_t count = left < arch::wave_size ? left : arch::wave_size;
    _Pragma("clang loop unroll(disable)") for (std::int32_t n = 0; n < count; ++n) {
      const float factor = arch::from_lane(mine, n);
      if (factor != 0 && there) sum += factor * number_at(row(begin + n), dtype, column);
    }
  }
  return sum;
}

// The rows that a workgroup writes: `base` is the first one, `count` are in use.
struct WideRows {
  std::byte* base;
  std::int64_t stride;
  DType dtype;
  int columns;
  std::int32_t count;

  WideRows(const Rows& to, DType type, std::int64_t batch, std::int64_t row, std::int64_t head,
           std::int32_t rows)
      : base(row_address(to, type, batch, row, head)),
        stride(to.row_stride * bytes_of(type)),
        dtype(type),
        columns(to.columns),
        count(rows) {}
};

// The end of a workgroup's work: sums times `factor` to rows in use, `columns_begin` being the slice's
// first column. exact(row, column, there) computes a sum that is not finite again.
template <WideTile tile, class Exact>
void finish_gradients(const WideRows& to, int columns_begin, float factor,
                      const Patch<tile.owned, tile.slice, tile.threads>& sums,
                      ROCFLASH_SHARED std::uint32_t* broken, Exact exact) {
  using Sums = Patch<tile.owned, tile.slice, tile.threads>;
  const int columns_end =
      columns_begin + tile.slice < to.columns ? columns_begin + tile.slice : to.columns;
  ROCFLASH_UNROLL
  for (int i = 0; i < Sums::own_rows; ++i) {
    const int n = Sums::own_row(i);
    std::byte* row = to.base + n * to.stride;
    const DType stored = renewed(to.dtype);
    float probe = 0;  // NaN once something is not finite
    ROCFLASH_UNROLL
    for (int j = 0; j < Sums::own_columns; ++j) {
      const float x = sums.at(i, j);
      probe = __builtin_fmaf(x, 0.0f, probe);
      const int column = columns_begin + Sums::own_column(j);
      if (n < to.count && column < columns_end) store_number(row, stored, column, x * factor);
    }
    const float probes = sum_of_sixteen(probe);
    if (arch::renewed_thread() % 16 == 0) broken[n] = probes != 0 && n < to.count ? 1 : 0;
  }
  arch::barrier();
  _Pragma("clang loop unroll(disable)") for (int n = arch::thread() / arch::wave_size;
                                             n < tile.owned; n += tile.threads / arch::wave_size) {
    if (!arch::any(broken[n] != 0)) continue;
    _Pragma("clang loop unroll(disable)") for (int begin = columns_begin; begin < columns_end;
                                               begin += arch::wave_size) {
      const int column = begin + arch::lane();
      const bool there = column < columns_end;
      const float x = exact(n, there ? column : begin, there);
      if (there) store_number(to.base + n * to.stride, renewed(to.dtype), column, x);
    }
  }
}

inline float dropout_scale(const Problem& p) { return p.dropout.on() ? p.dropout.scale() : 1.0f; }

// What a workgroup computes. The end of a kernel finds it out again rather than keep it in registers.
template <WideTile tile>
struct WidePosition {
  WorkItem item;
  SequenceView sequence;
  std::int32_t first;  // owned row
  int part;            // which slice

  WidePosition(const BackwardArguments& a, std::int64_t heads)
      : WidePosition(a, heads, static_cast<std::uint32_t>(arch::renewed(arch::group()))) {}

 private:
  WidePosition(const BackwardArguments& a, std::int64_t heads, std::uint32_t group)
      : item(a.work, static_cast<std::int32_t>(heads),
             static_cast<std::int32_t>(group % static_cast<std::uint32_t>(a.work.groups))),
        sequence(a.problem, item.batch),
        first(item.block * tile.owned),
        part(static_cast<int>(group / static_cast<std::uint32_t>(a.work.groups))) {}
};

template <WideTile tile>
void finish_queries(const BackwardArguments& a,
                    const Patch<tile.owned, tile.slice, tile.threads>& sums,
                    ROCFLASH_SHARED std::uint32_t* broken) {
  const WidePosition<tile> at(a, a.problem.heads);
  const float factor = a.problem.scale * dropout_scale(a.problem);
  const WideRows to(a.tensors.dq, a.problem.dtype, at.sequence.batch, at.sequence.q_row + at.first,
                    at.item.head, at.sequence.sq - at.first);
  finish_gradients<tile>(
      to, at.part * tile.slice, factor, sums, broken,
      [&](std::int32_t row, int column, bool there) {
        const BackwardArguments& b = arch::again(a);
        const WidePosition<tile> here(b, b.problem.heads);
        const SequenceView& s = here.sequence;
        const std::int32_t query = here.first + row;
        const QueryView view(b.problem.visibility, s, query);
        const RowSource k(b.problem.k, b.problem.head_dim, b.problem.dtype, s.batch, s.k_row, s.sk,
                          b.problem.kv_head(here.item.head));
        return exact_sum(
            0, view.begin, view.end, column, there, b.problem.dtype,
            [&](std::int32_t key) {
              return exact_pair(b, s, here.item.head, query, key).gradient * factor;
            },
            [&](std::int32_t key) { return k.row(key); });
      });
}

template <KernelSpec spec>
void backward_wide_queries(const BackwardArguments& a) {
  constexpr WideTile tile = wide_tile(this_family, spec);
  using Gradients = WideGradients<Owner::queries, GradientOf::product, tile>;
  using Scores = typename Gradients::Scores;
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::numbers];
  ROCFLASH_SHARED_ARRAY float shared_gradients[tile.streamed * line_length(tile.owned)];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  ROCFLASH_SHARED_ARRAY std::uint32_t broken[tile.owned];
  static_assert(RowCarrier<tile.slice, tile.depth, tile.threads>::numbers <= Gradients::numbers);

  const Problem& p = a.problem;
  const WidePosition<tile> at(a, p.heads);
  const SequenceView& sequence = at.sequence;
  if (at.first >= sequence.sq) return;

  const SeenKeys keys(p.visibility, sequence, arch::in_lanes(at.first), tile.owned);
  const Span seen = uniform_span(keys.by_any), seen_by_all = uniform_span(keys.by_all);
  const bool ragged = at.first + tile.owned > sequence.sq;
  const int column = at.part * tile.slice;
  typename Gradients::Memory memory(shared_lines);
  Gradients::look(p.visibility, sequence, at.first, shared);
  Gradients tiles(a, sequence, at.item.head, shared);
  tiles.own(at.first);
  Patch<tile.owned, tile.slice, tile.threads> sums;
  _Pragma("clang loop unroll(disable)") for (std::int32_t begin =
                                                 seen.begin / dropout_keys * dropout_keys;
                                             begin < seen.end; begin += tile.streamed) {
    const bool edge =
        ragged || begin < seen_by_all.begin || begin + tile.streamed > seen_by_all.end;
    Scores weights, gradients;
    tiles.template compute<true>(begin, edge, memory, weights, gradients);
    RowCarrier<tile.slice, tile.depth, tile.threads> carrier;
    carrier.start(tiles.k(), begin, column);
    store_lines(gradients, shared_gradients);
    add_rows(sums, shared_gradients, tile.streamed, carrier, tiles.k(), begin, column, memory);
  }
  finish_queries<tile>(arch::again(a), sums, broken);
}

enum class WideResult { dk, dv };

template <WideResult result, WideTile tile>
void finish_keys(const BackwardArguments& a,
                 const Patch<tile.owned, tile.slice, tile.threads>& sums,
                 ROCFLASH_SHARED std::uint32_t* broken) {
  constexpr bool is_dk = result == WideResult::dk;
  const WidePosition<tile> at(a, a.problem.kv_heads);
  const float factor = (is_dk ? a.problem.scale : 1.0f) * dropout_scale(a.problem);
  const WideRows to(is_dk ? a.tensors.dk : a.tensors.dv, a.problem.dtype, at.sequence.batch,
                    at.sequence.k_row + at.first, at.item.head, at.sequence.sk - at.first);
  finish_gradients<tile>(to, at.part * tile.slice, factor, sums, broken,
                         [&](std::int32_t row, int column, bool there) {
                           const BackwardArguments& b = arch::again(a);
                           const WidePosition<tile> here(b, b.problem.kv_heads);
                           const SequenceView& s = here.sequence;
                           const std::int32_t key = here.first + row;
                           const KeyView view(b.problem.visibility, s, key);
                           const auto group = static_cast<std::int32_t>(b.problem.group());
                           float sum = 0;
                           _Pragma("clang loop unroll(disable)") for (std::int32_t member = 0;
                                                                      member < group; ++member) {
                             const BackwardArguments& c = arch::again(b);
                             const std::int64_t head =
                                 std::int64_t{here.item.head} * group + member;
                             const RowSource rows(is_dk ? c.problem.q : c.tensors.dout,
                                                  is_dk ? c.problem.head_dim : c.problem.value_dim,
                                                  c.problem.dtype, s.batch, s.q_row, s.sq, head);
                             sum = exact_sum(
                                 sum, view.begin, view.end, column, there, c.problem.dtype,
                                 [&](std::int32_t query) {
                                   const ExactPair pair = exact_pair(c, s, head, query, key);
                                   return (is_dk ? pair.gradient : pair.weight) * factor;
                                 },
                                 [&](std::int32_t query) { return rows.row(query); });
                           }
                           return sum;
                         });
}

template <WideResult result, WideTile tile>
void backward_wide_key_result(const BackwardArguments& a) {
  constexpr bool is_dk = result == WideResult::dk;
  using Gradients = WideGradients<Owner::keys, GradientOf::product, tile>;
  using Scores = typename Gradients::Scores;
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::numbers];
  ROCFLASH_SHARED_ARRAY float shared_weights[tile.streamed * line_length(tile.owned)];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  ROCFLASH_SHARED_ARRAY std::uint32_t broken[tile.owned];
  static_assert(RowCarrier<tile.slice, tile.depth, tile.threads>::numbers <= Gradients::numbers);

  typename Gradients::Memory memory(shared_lines);
  Patch<tile.owned, tile.slice, tile.threads> sums;
  _Pragma("clang loop unroll(disable)") for (std::int32_t counter = arch::in_lanes(0);; ++counter) {
    const std::int32_t member = arch::uniform(counter);
    // Found out again for each head: scalar registers do not hold all that is the same for all heads.
    const BackwardArguments& b = arch::again(a);
    const auto group = static_cast<std::int32_t>(b.problem.group());
    if (member >= group) break;
    const WidePosition<tile> at(b, b.problem.kv_heads);
    if (at.first >= at.sequence.sk) return;
    const SeeingQueries queries(b.problem.visibility, at.sequence, arch::in_lanes(at.first),
                                tile.owned);
    const Span seeing = uniform_span(queries.any), all_see = uniform_span(queries.all);
    const int column = at.part * tile.slice;
    const bool ragged = at.first + tile.owned > at.sequence.sk;
    if (member == 0) Gradients::look(b.problem.visibility, at.sequence, at.first, shared);
    Gradients tiles(b, at.sequence, std::int64_t{at.item.head} * group + member, shared);
    tiles.own(at.first);
    _Pragma("clang loop unroll(disable)") for (std::int32_t begin = seeing.begin;
                                               begin < seeing.end; begin += tile.streamed) {
      // For dv all tiles count as edges, which is cheap and leaves scalar registers to others.
      const bool edge =
          !is_dk || ragged || begin < all_see.begin || begin + tile.streamed > all_see.end;
      Scores weights, gradients;
      tiles.template compute<is_dk>(begin, edge, memory, weights, gradients);
      RowCarrier<tile.slice, tile.depth, tile.threads> carrier;
      const RowSource& rows = is_dk ? tiles.q() : tiles.dout();
      carrier.start(rows, begin, column);
      store_lines(is_dk ? gradients : weights, shared_weights);
      add_rows(sums, shared_weights, tile.streamed, carrier, rows, begin, column, memory);
    }
  }
  finish_keys<result, tile>(arch::again(a), sums, broken);
}

template <KernelSpec spec>
void backward_wide_dk(const BackwardArguments& a) {
  backward_wide_key_result<WideResult::dk, wide_tile(this_family, spec)>(a);
}
template <KernelSpec spec>
void backward_wide_dv(const BackwardArguments& a) {
  backward_wide_key_result<WideResult::dv, wide_tile(this_family, spec)>(a);
}

}  // namespace rocflash::kernel
