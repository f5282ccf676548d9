// Forward in f32 arithmetic: for f32, and for head sizes that the schedules
// with matrix instructions do not have. Serves every GPU, dtype and option.
//
// Each workgroup handles one block of queries, and of their outputs one slice of the columns; it takes
// one tile of keys after the other. Wider values take several workgroups, each of which computes the
// scores again.
//
//   registers   the scores of one tile, then its weights; a slice of the outputs
//   shared      some columns of q and k, then some rows of v; the weights, transposed
//
// A thread's scores and its outputs belong to the same queries, whose softmax therefore stays in its
// registers.
#pragma once

#include "arch/arch.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact.hpp"
#include "attention/outside.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "table/wide.hpp"
#include "wide/powers.hpp"
#include "wide/products.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct WideForwardTypes {
  static constexpr WideTile tile = wide_tile(this_family, spec);
  using Unit = ExactPowers;
  using Softmax = SoftmaxOf<Unit>;
  using Scores = Patch<tile.owned, tile.streamed, tile.threads>;
  using Outputs = Patch<tile.owned, tile.slice, tile.threads>;
  using QueryCarrier = ColumnCarrier<tile.owned, tile.depth, tile.threads>;
  using KeyCarrier = ColumnCarrier<tile.streamed, tile.depth, tile.threads>;
  using ValueCarrier = RowCarrier<tile.slice, tile.depth, tile.threads>;
  static constexpr int numbers = QueryCarrier::numbers + KeyCarrier::numbers;
  static_assert(ValueCarrier::numbers <= numbers && Scores::own_quads == 1);
  // Queries that stay in registers, where a matrix instruction takes them from there: so many columns.
  static constexpr int kept = tile.threads > wide_threads ? tile.slice : 0;
};

// What the repair of a query needs to know of it, in shared memory.
struct WideQuery {
  float base, factor;
  bool is_broken;
};

// The end: sums over the threads of a query, the sink, one division, the stores. It computes its
// position again rather than keep it in registers during the loop.
template <KernelSpec spec>
void finish_wide(const ForwardArguments& a, ROCFLASH_SHARED WideQuery* queries,
                 const typename WideForwardTypes<spec>::Softmax* softmax,
                 const typename WideForwardTypes<spec>::Outputs& out) {
  using Types = WideForwardTypes<spec>;
  using Outputs = typename Types::Outputs;
  using Unit = typename Types::Unit;
  constexpr WideTile tile = Types::tile;
  const Problem& p = a.problem;
  const int slice = arch::group() / a.work.groups;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group() % a.work.groups);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.owned;
  const int columns_begin = slice * tile.slice;
  const int columns_end = static_cast<int>(smaller(columns_begin + tile.slice, p.value_dim));
  const bool has_sink = static_cast<bool>(p.sinks), has_lse = a.outputs.lse && slice == 0;
  const float sink = has_sink ? sink_of(p, item.head) : 0.0f;
  const float dropout_scale = p.dropout.on() ? p.dropout.scale() : 1.0f;
  std::byte* const first_row =
      row_address(a.outputs.out, p.dtype, sequence.batch, sequence.q_row + block_begin, item.head);
  const std::int64_t row_bytes = a.outputs.out.row_stride * bytes_of(p.dtype);

  ROCFLASH_UNROLL
  for (int i = 0; i < Outputs::own_rows; ++i) {
    const std::int32_t query = block_begin + Outputs::own_row(i);
    const bool in_use = query < sequence.sq;
    Normaliser normaliser =
        normalise<Unit>(softmax[i].reference, sum_of_sixteen(softmax[i].sum), has_sink, sink);
    normaliser.factor *= dropout_scale;
    if (has_lse && thread_column() == 0 && query < sequence.q_rows)
      store_lse(a.outputs, sequence, item.head, query, normaliser.lse);
    const DType stored = renewed(p.dtype);
    float probe = normaliser.factor * 0.0f;  // NaN once something is not finite
    std::byte* row = first_row + Outputs::own_row(i) * row_bytes;
    ROCFLASH_UNROLL
    for (int j = 0; j < Outputs::own_columns; ++j) {
      const float x = out.at(i, j);
      probe = __builtin_fmaf(x, 0.0f, probe);
      const int column = columns_begin + Outputs::own_column(j);
      if (query < sequence.q_rows && column < columns_end)
        store_number(row, stored, column, in_use ? x * normaliser.factor : 0.0f);
    }
    const float probes = sum_of_sixteen(probe);  // by all lanes: some may not be in use
    const bool is_broken = in_use && probes != 0;
    if (thread_column() == 0) {
      queries[Outputs::own_row(i)].base = softmax[i].base();
      queries[Outputs::own_row(i)].factor = normaliser.factor;
      queries[Outputs::own_row(i)].is_broken = is_broken;
    }
  }

  arch::barrier();
  const ForwardArguments& again = arch::again(a);
  ForwardOutputs outputs = again.outputs;
  if (slice > 0) outputs.lse = {};
  for (int n = arch::thread() / arch::wave_size; n < tile.owned;
       n += tile.threads / arch::wave_size) {
    if (!arch::any(queries[n].is_broken)) continue;
    repair(ExactScores<DType::f32, Unit, true>{again.problem, sequence, item.head, again.caches},
           QueryView(again.problem.visibility, sequence, block_begin + n), queries[n].base,
           queries[n].factor, outputs, columns_begin, columns_end);
  }
}

template <KernelSpec spec>
void forward_wide(const ForwardArguments& a) {
  using Types = WideForwardTypes<spec>;
  using Scores = typename Types::Scores;
  using Outputs = typename Types::Outputs;
  using Unit = typename Types::Unit;
  constexpr WideTile tile = Types::tile;

  ROCFLASH_SHARED_ARRAY float shared_lines[2][Types::numbers];
  ROCFLASH_SHARED_ARRAY float shared_weights[tile.streamed * line_length(tile.owned)];
  ROCFLASH_SHARED_ARRAY std::int32_t seen_begin[tile.owned], seen_end[tile.owned];
  ROCFLASH_SHARED_ARRAY WideQuery queries[tile.owned];

  const Problem& p = a.problem;
  const int slice = arch::group() / a.work.groups;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group() % a.work.groups);
  if (slice == 0) clear_outside<tile.threads>(a, item, p.dtype);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.owned;
  if (block_begin >= sequence.q_rows) return;
  const std::int64_t kv_head = p.kv_head(item.head);

  // Keys that each query sees.
  if (arch::thread() < tile.owned) {
    const QueryView view(p.visibility, sequence, block_begin + arch::thread());
    seen_begin[arch::thread()] = view.begin;
    seen_end[arch::thread()] = view.end;
  }
  const SeenKeys block_keys(p.visibility, sequence, arch::in_lanes(block_begin), tile.owned);
  const Span seen = uniform_span(block_keys.by_any), seen_by_all = uniform_span(block_keys.by_all);
  const std::int32_t first_key = seen.begin / dropout_keys * dropout_keys;

  const RowSource q(p.q, p.head_dim, p.dtype, sequence.batch, sequence.q_row, sequence.sq,
                    item.head);
  const PagedSource k(a, p.k, p.head_dim, sequence, kv_head),
      v(a, p.v, p.value_dim, sequence, kv_head);
  // Products that may leave float's range are those of operands with a share of the scale each.
  const bool shared_scale = products_overflow(p);
  const float share =
      arch::in_lanes(shared_scale ? __builtin_sqrtf(__builtin_fabsf(p.scale)) : 1.0f);
  const float scale = arch::in_lanes(shared_scale ? __builtin_copysignf(1.0f, p.scale) : p.scale);

  const ScoreShape shape(p, sequence, item.head);
  typename Types::Softmax softmax[Scores::own_rows];
  Outputs out;
  Turns<Types::numbers> memory(shared_lines);
  const int columns_begin = arch::in_lanes(slice * tile.slice);
  // Twice: what each way of loading needs would not fit into scalar registers beside the other's.
  const auto attend = [&]<bool keeps>() {
    typename Types::QueryCarrier q_carrier;
    typename Types::KeyCarrier k_carrier;
    typename Types::ValueCarrier v_carrier;
    [[maybe_unused]] float kept_q[keeps ? Types::kept / 4 : 1];
    if constexpr (keeps) {
      const std::byte* row = q.plain_row(block_begin + Scores::kept_row());
      ROCFLASH_UNROLL
      for (int n = 0; n < Types::kept / 4; ++n) {
        const int column = 4 * n + Scores::kept_line();
        const float x = number_at(row, DType::f32, column < p.head_dim ? column : 0);
        kept_q[n] = column < p.head_dim ? x * share : 0.0f;
      }
    } else {
      q_carrier.aim(q, block_begin);
    }
    _Pragma("clang loop unroll(disable)") for (std::int32_t begin = first_key; begin < seen.end;
                                               begin += tile.streamed) {
      // scores = Q·Kᵀ
      Scores scores;
      if constexpr (keeps) {
        k_carrier.aim_plain(k, begin);
        add_kept_products(scores, kept_q, k_carrier, k, share, memory);
        v_carrier.load_plain(v, begin, columns_begin);
      } else {
        k_carrier.aim(k, begin);
        add_products(scores, q_carrier, q, k_carrier, k, share, memory);
        v_carrier.load(v, begin, columns_begin);
      }

      const bool edge = begin < seen_by_all.begin || begin + tile.streamed > seen_by_all.end ||
                        block_begin + tile.owned > sequence.sq;
      const std::int32_t own_key = begin + Scores::own_column(0);
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::own_rows; i += 4) {
        float s[4][4];
        ROCFLASH_UNROLL
        for (int r = 0; r < 4; ++r) {
          const auto at = [&](int n) -> float& { return s[r][n]; };
          const auto key = [&](int n) { return own_key + n; };
          ROCFLASH_UNROLL
          for (int n = 0; n < 4; ++n) s[r][n] = scores.at(i + r, n);
          QueryView query;
          query.index = block_begin + Scores::own_row(i + r);
          shape.template shape<4, Unit>(query, at, key, scale);
          if (edge) {
            query.begin = seen_begin[Scores::own_row(i + r)];
            query.end = seen_end[Scores::own_row(i + r)];
            ROCFLASH_UNROLL
            for (int n = 0; n < 4; ++n) s[r][n] = query.sees(key(n)) ? s[r][n] : -infinity;
          }
          // weights = exp(scores - reference)
          auto& own = softmax[i + r];
          const float largest = largest_of_sixteen(__builtin_fmaxf(
              __builtin_fmaxf(s[r][0], s[r][1]), __builtin_fmaxf(s[r][2], s[r][3])));
          if (own.behind(largest)) {
            const float factor = own.follow(largest);
            ROCFLASH_UNROLL
            for (int j = 0; j < Outputs::own_columns; ++j)
              out.set(i + r, j, out.at(i + r, j) * factor);
          }
          ROCFLASH_UNROLL
          for (int n = 0; n < 4; ++n) {
            s[r][n] = Unit::exp(s[r][n] - own.base());
            own.sum += s[r][n];
          }
          if (p.dropout.on()) shape.template drop<4, 4>(query, at, key);
        }
        ROCFLASH_UNROLL
        for (int n = 0; n < 4; ++n) {
          *(SharedFloat4*)(shared_weights + Scores::own_column(n) * line_length(tile.owned) +
                           Scores::own_row(i)) = Float4{s[0][n], s[1][n], s[2][n], s[3][n]};
        }
      }

      // out += P·V
      add_rows_as<keeps>(out, shared_weights, tile.streamed, v_carrier, v, begin, columns_begin,
                         memory);
    }
  };
  if constexpr (Types::kept > 0) {
    if (p.head_dim <= Types::kept && q.template plain<4>() && k.template plain<tile.depth>() &&
        v.template plain<4>())
      attend.template operator()<true>();
    else
      attend.template operator()<false>();
  } else {
    attend.template operator()<false>();
  }

  finish_wide<spec>(arch::again(a), queries, softmax, out);
}

}  // namespace rocflash::kernel
