// Backward on the FP32 path, without matrix instructions: for f32, and for head dimensions without
// a matrix kernel. It supports every GPU, dtype and option.
//
//   preprocess  delta = rowsum(dO·O)
//   dQ          each workgroup owns a block of queries and a slice of dQ's columns; keys stream
//               through LDS:
//                 S = Q·Kᵀ, dP = dO·Vᵀ, dQ += dS·K
//   dK, dV      each workgroup owns a block of keys of one KV head and a slice of the columns; the
//               queries of the GQA group stream through LDS:
//                 S = K·Qᵀ, dP = V·dOᵀ, dK += dSᵀ·Q, or S and dV += Pᵀ·dO
//
// No two workgroups write the same element: the results are deterministic.
#pragma once

#include "arch/arch.hpp"
#include "attention/work_tile.hpp"
#include "fp32/gradients.hpp"

namespace rocflash::kernel {

// One thread per query, in the summation order of dP: for a query with all its weight on one key,
// delta has the same bits as dP. The dropout scale is divided out of each element of O, not out of
// the sum, so that the products equal those of dP up to the last bit.
template <KernelSpec spec>
void backward_preprocess_fp32(const BackwardArguments& a) {
  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t query = item.block * fp32_tile(this_family, spec).owned + arch::thread();
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
  store_row_softmax(
      a, ExactScores<DType::f32, ExactLogDomain, true, false>{p, sequence, item.head, 0}, query);
  if (may_differ_from_value(p)) {
    const OnlyKey only = only_key(p, sequence, query, [&](std::int32_t key) {
      return exact_terms(a, sequence, item.head, query, key);
    });
    if (only.key >= 0) sum = only.dp;
  }
  arch::store(&a.delta.at(sequence.batch, item.head, row),
              subtract_dlse(a, sequence.batch, item.head, row, sum));
}

// sum + Σ term(n) · row(n)[column] over [from, end), computed by a wave. Each lane computes one
// term at a time and accumulates one column. Terms of 0 are skipped, so that masked non-finite rows
// have no influence.
template <class Term, class Row>
float exact_sum(float sum, std::int32_t from, std::int32_t end, int column, bool in_bounds,
                DType dtype, Term term, Row row) {
  _Pragma("clang loop unroll(disable)") for (std::int32_t begin = from; begin < end;
                                             begin += arch::wave_size) {
    const std::int32_t own = begin + arch::lane();
    const float mine = own < end ? term(own) : 0.0f;
    const std::int32_t left = end - begin;
    const std::int32_t count = left < arch::wave_size ? left : arch::wave_size;
    _Pragma("clang loop unroll(disable)") for (std::int32_t n = 0; n < count; ++n) {
      const float factor = arch::readlane(mine, n);
      if (factor != 0 && in_bounds) sum += factor * load_element(row(begin + n), dtype, column);
    }
  }
  return sum;
}

// The rows that a workgroup writes: `count` rows from `base` on are in bounds.
struct Fp32Rows {
  std::byte* base;
  std::int64_t stride;
  DType dtype;
  int columns;
  std::int32_t count;

  Fp32Rows(const Rows& to, DType type, std::int64_t batch, std::int64_t row, std::int64_t head,
           std::int32_t rows)
      : base(row_address(to, type, batch, row, head)),
        stride(to.row_stride * bytes_of(type)),
        dtype(type),
        columns(to.columns),
        count(rows) {}
};

// Epilogue: stores the accumulator times `factor`. The slice starts at `columns_begin`. exact(row,
// column, in_bounds) recomputes an element of a non-finite row.
template <Fp32Tile tile, class Exact>
void epilogue_gradients(const Fp32Rows& to, int columns_begin, float factor,
                        const ThreadTile<tile.owned, tile.slice, tile.threads>& sums,
                        ROCFLASH_SHARED std::uint32_t* non_finite, Exact exact) {
  using Sums = ThreadTile<tile.owned, tile.slice, tile.threads>;
  const int columns_end =
      columns_begin + tile.slice < to.columns ? columns_begin + tile.slice : to.columns;
  ROCFLASH_UNROLL
  for (int i = 0; i < Sums::own_rows; ++i) {
    const int n = Sums::own_row(i);
    std::byte* row = to.base + n * to.stride;
    const DType stored = opaque_dtype(to.dtype);
    float probe = 0;  // NaN once something is not finite
    ROCFLASH_UNROLL
    for (int j = 0; j < Sums::own_columns; ++j) {
      const float x = sums.at(i, j);
      probe = __builtin_fmaf(x, 0.0f, probe);
      const int column = columns_begin + Sums::own_column(j);
      if (n < to.count && column < columns_end) store_element(row, stored, column, x * factor);
    }
    const float probes = sum_16_lanes(probe);
    if (arch::opaque_thread() % 16 == 0) non_finite[n] = probes != 0 && n < to.count ? 1 : 0;
  }
  arch::barrier();
  _Pragma("clang loop unroll(disable)") for (int n = arch::thread() / arch::wave_size;
                                             n < tile.owned; n += tile.threads / arch::wave_size) {
    if (!arch::any(non_finite[n] != 0)) continue;
    _Pragma("clang loop unroll(disable)") for (int begin = columns_begin; begin < columns_end;
                                               begin += arch::wave_size) {
      const int column = begin + arch::lane();
      const bool in_bounds = column < columns_end;
      const float x = exact(n, in_bounds ? column : begin, in_bounds);
      if (in_bounds) store_element(to.base + n * to.stride, opaque_dtype(to.dtype), column, x);
    }
  }
}

inline float dropout_scale(const Problem& p) { return p.dropout.on() ? p.dropout.scale() : 1.0f; }

// A workgroup's work tile. The epilogue computes it again instead of keeping it in registers.
template <Fp32Tile tile>
struct Fp32Position {
  WorkTile item;
  SequenceView sequence;
  std::int32_t first;  // owned row
  int part;            // which slice

  Fp32Position(const BackwardArguments& a, std::int64_t heads)
      : Fp32Position(a, heads,
                     static_cast<std::uint32_t>(arch::opaque_sgpr(arch::workgroup_id()))) {}

 private:
  Fp32Position(const BackwardArguments& a, std::int64_t heads, std::uint32_t workgroup)
      : item(a.work, static_cast<std::int32_t>(heads),
             static_cast<std::int32_t>(workgroup % static_cast<std::uint32_t>(a.work.workgroups))),
        sequence(a.problem, item.batch),
        first(item.block * tile.owned),
        part(static_cast<int>(workgroup / static_cast<std::uint32_t>(a.work.workgroups))) {}
};

template <Fp32Tile tile>
void epilogue_dq(const BackwardArguments& a,
                 const ThreadTile<tile.owned, tile.slice, tile.threads>& sums,
                 ROCFLASH_SHARED std::uint32_t* non_finite) {
  const Fp32Position<tile> at(a, a.problem.heads);
  const float factor = a.problem.scale * dropout_scale(a.problem);
  const Fp32Rows to(a.tensors.dq, a.problem.dtype, at.sequence.batch, at.sequence.q_row + at.first,
                    at.item.head, at.sequence.sq - at.first);
  epilogue_gradients<tile>(
      to, at.part * tile.slice, factor, sums, non_finite,
      [&](std::int32_t row, int column, bool in_bounds) {
        const BackwardArguments& b = arch::reload_kernargs(a);
        const Fp32Position<tile> here(b, b.problem.heads);
        const SequenceView& s = here.sequence;
        const std::int32_t query = here.first + row;
        const QueryView view(b.problem.visibility, s, query);
        const RowSource k(b.problem.k, b.problem.head_dim, b.problem.dtype, s.batch, s.k_row, s.sk,
                          b.problem.kv_head(here.item.head));
        return exact_sum(
            0, view.begin, view.end, column, in_bounds, b.problem.dtype,
            [&](std::int32_t key) {
              return exact_pair(b, s, here.item.head, query, key).gradient * factor;
            },
            [&](std::int32_t key) { return k.row(key); });
      });
}

template <KernelSpec spec>
void backward_dq_fp32(const BackwardArguments& a) {
  constexpr Fp32Tile tile = fp32_tile(this_family, spec);
  using Gradients = Fp32Gradients<Owner::queries, GradientOf::product, tile>;
  using Scores = typename Gradients::Scores;
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::floats];
  ROCFLASH_SHARED_ARRAY float shared_gradients[tile.streamed * line_length(tile.owned)];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  ROCFLASH_SHARED_ARRAY std::uint32_t non_finite[tile.owned];
  static_assert(Fp32RowStaging<tile.slice, tile.depth, tile.threads>::floats <= Gradients::floats);

  const Problem& p = a.problem;
  const Fp32Position<tile> at(a, p.heads);
  const SequenceView& sequence = at.sequence;
  if (at.first >= sequence.sq) return;

  const VisibleKeys keys(p.visibility, sequence, arch::to_vgpr(at.first), tile.owned);
  const Span visible = uniform_span(keys.by_any), visible_to_all = uniform_span(keys.by_all);
  const bool ragged = at.first + tile.owned > sequence.sq;
  const int column = at.part * tile.slice;
  typename Gradients::Memory memory(shared_lines);
  Gradients::store_mask_bounds(p.visibility, sequence, at.first, shared);
  Gradients tiles(a, sequence, at.item.head, shared);
  tiles.own(at.first);
  ThreadTile<tile.owned, tile.slice, tile.threads> sums;
  _Pragma("clang loop unroll(disable)") for (std::int32_t begin =
                                                 visible.begin / dropout_keys * dropout_keys;
                                             begin < visible.end; begin += tile.streamed) {
    const bool edge =
        ragged || begin < visible_to_all.begin || begin + tile.streamed > visible_to_all.end;
    Scores weights, gradients;
    tiles.template compute<true>(begin, edge, memory, weights, gradients);
    Fp32RowStaging<tile.slice, tile.depth, tile.threads> staging;
    staging.start(tiles.k(), begin, column);
    store_lines(gradients, shared_gradients);
    add_rows(sums, shared_gradients, tile.streamed, staging, tiles.k(), begin, column, memory);
  }
  epilogue_dq<tile>(arch::reload_kernargs(a), sums, non_finite);
}

enum class Fp32Result { dk, dv };

template <Fp32Result result, Fp32Tile tile>
void epilogue_dk_dv(const BackwardArguments& a,
                    const ThreadTile<tile.owned, tile.slice, tile.threads>& sums,
                    ROCFLASH_SHARED std::uint32_t* non_finite) {
  constexpr bool is_dk = result == Fp32Result::dk;
  const Fp32Position<tile> at(a, a.problem.kv_heads);
  const float factor = (is_dk ? a.problem.scale : 1.0f) * dropout_scale(a.problem);
  const Fp32Rows to(is_dk ? a.tensors.dk : a.tensors.dv, a.problem.dtype, at.sequence.batch,
                    at.sequence.k_row + at.first, at.item.head, at.sequence.sk - at.first);
  epilogue_gradients<tile>(
      to, at.part * tile.slice, factor, sums, non_finite,
      [&](std::int32_t row, int column, bool in_bounds) {
        const BackwardArguments& b = arch::reload_kernargs(a);
        const Fp32Position<tile> here(b, b.problem.kv_heads);
        const SequenceView& s = here.sequence;
        const std::int32_t key = here.first + row;
        const KeyView view(b.problem.visibility, s, key);
        const auto gqa_group = static_cast<std::int32_t>(b.problem.gqa_group());
        float sum = 0;
        _Pragma("clang loop unroll(disable)") for (std::int32_t member = 0; member < gqa_group;
                                                   ++member) {
          const BackwardArguments& c = arch::reload_kernargs(b);
          const std::int64_t head = std::int64_t{here.item.head} * gqa_group + member;
          const RowSource rows(is_dk ? c.problem.q : c.tensors.dout,
                               is_dk ? c.problem.head_dim : c.problem.value_dim, c.problem.dtype,
                               s.batch, s.q_row, s.sq, head);
          sum = exact_sum(
              sum, view.begin, view.end, column, in_bounds, c.problem.dtype,
              [&](std::int32_t query) {
                const ExactPair pair = exact_pair(c, s, head, query, key);
                return (is_dk ? pair.gradient : pair.weight) * factor;
              },
              [&](std::int32_t query) { return rows.row(query); });
        }
        return sum;
      });
}

template <Fp32Result result, Fp32Tile tile>
void backward_key_result_fp32(const BackwardArguments& a) {
  constexpr bool is_dk = result == Fp32Result::dk;
  using Gradients = Fp32Gradients<Owner::keys, GradientOf::product, tile>;
  using Scores = typename Gradients::Scores;
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::floats];
  ROCFLASH_SHARED_ARRAY float shared_weights[tile.streamed * line_length(tile.owned)];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  ROCFLASH_SHARED_ARRAY std::uint32_t non_finite[tile.owned];
  static_assert(Fp32RowStaging<tile.slice, tile.depth, tile.threads>::floats <= Gradients::floats);

  typename Gradients::Memory memory(shared_lines);
  ThreadTile<tile.owned, tile.slice, tile.threads> sums;
  _Pragma("clang loop unroll(disable)") for (std::int32_t counter = arch::to_vgpr(0);; ++counter) {
    const std::int32_t member = arch::uniform(counter);
    // Computed again for each head: SGPRs do not hold all lane-invariant values.
    const BackwardArguments& b = arch::reload_kernargs(a);
    const auto gqa_group = static_cast<std::int32_t>(b.problem.gqa_group());
    if (member >= gqa_group) break;
    const Fp32Position<tile> at(b, b.problem.kv_heads);
    if (at.first >= at.sequence.sk) return;
    const AttendingQueries queries(b.problem.visibility, at.sequence, arch::to_vgpr(at.first),
                                   tile.owned);
    const Span attending = uniform_span(queries.any), all_attending = uniform_span(queries.all);
    const int column = at.part * tile.slice;
    const bool ragged = at.first + tile.owned > at.sequence.sk;
    if (member == 0)
      Gradients::store_mask_bounds(b.problem.visibility, at.sequence, at.first, shared);
    Gradients tiles(b, at.sequence, std::int64_t{at.item.head} * gqa_group + member, shared);
    tiles.own(at.first);
    _Pragma("clang loop unroll(disable)") for (std::int32_t begin = attending.begin;
                                               begin < attending.end; begin += tile.streamed) {
      // For dV all tiles are masked, which is cheap and saves SGPRs.
      const bool edge = !is_dk || ragged || begin < all_attending.begin ||
                        begin + tile.streamed > all_attending.end;
      Scores weights, gradients;
      tiles.template compute<is_dk>(begin, edge, memory, weights, gradients);
      Fp32RowStaging<tile.slice, tile.depth, tile.threads> staging;
      const RowSource& rows = is_dk ? tiles.q() : tiles.dout();
      staging.start(rows, begin, column);
      store_lines(is_dk ? gradients : weights, shared_weights);
      add_rows(sums, shared_weights, tile.streamed, staging, rows, begin, column, memory);
    }
  }
  epilogue_dk_dv<result, tile>(arch::reload_kernargs(a), sums, non_finite);
}

template <KernelSpec spec>
void backward_dk_fp32(const BackwardArguments& a) {
  backward_key_result_fp32<Fp32Result::dk, fp32_tile(this_family, spec)>(a);
}
template <KernelSpec spec>
void backward_dv_fp32(const BackwardArguments& a) {
  backward_key_result_fp32<Fp32Result::dv, fp32_tile(this_family, spec)>(a);
}

}  // namespace rocflash::kernel
