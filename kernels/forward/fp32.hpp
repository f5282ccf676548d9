// Forward on the FP32 path: for f32, for head dims without a kernel on matrix cores, and for
// quantized K and V. Supports every GPU, dtype and option.
//
// Each workgroup has one block of queries and one slice of the columns of O, and loops over the key
// tiles. Head dims of V beyond one slice take several workgroups, each of which recomputes the
// scores.
//
//   registers       S of one tile, then P; a slice of O
//   shared memory   columns of Q and K, then rows of V; Pᵀ
//
// The scores and outputs of a thread belong to the same queries, whose softmax state stays in
// registers.
#pragma once

#include "arch/arch.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact_recompute.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "attention/zero_unused_rows.hpp"
#include "fp32/exp_log.hpp"
#include "fp32/products.hpp"
#include "table/fp32.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct Fp32ForwardTypes {
  static constexpr Fp32Tile tile = fp32_tile(this_family, spec);
  static constexpr bool quantized = spec.dtype == DType::i8;  // any 8-bit dtype
  static constexpr Codes codes = quantized ? Codes::table : Codes::none;
  using Keys = KeySource<quantized>;
  using Domain = ExactLogDomain;
  using Softmax = BasicOnlineSoftmax<Domain>;
  using Scores = ThreadTile<tile.owned, tile.streamed, tile.threads>;
  using Outputs = ThreadTile<tile.owned, tile.slice, tile.threads>;
  using QueryStaging = Fp32ColumnStaging<tile.owned, tile.depth, tile.threads>;
  using KeyStaging =
      Fp32ColumnStaging<tile.streamed, tile.depth, tile.threads, typename Keys::Staged>;
  using ValueStaging = Fp32RowStaging<tile.slice, tile.depth, tile.threads>;
  static constexpr int floats = QueryStaging::floats + KeyStaging::floats;
  static_assert(ValueStaging::floats <= floats && Scores::own_quads == 1);
  // Columns of Q that stay in registers, as operands of the matrix instruction.
  static constexpr int resident_columns =
      tile.threads > fp32_threads && !quantized ? tile.slice : 0;
};

// Per-query flag in shared memory, from the stores of the epilogue to the recomputation.
struct Fp32Query {
  bool is_non_finite;
};

// Epilogue: row sums over the threads of a query, sink, normalization, stores, recomputation of
// non-finite rows. It computes the work tile again, so that the main loop need not keep it in
// registers.
template <KernelSpec spec>
void store_outputs_fp32(const ForwardArguments& a, ROCFLASH_SHARED Fp32Query* queries,
                        CodeValues values, const typename Fp32ForwardTypes<spec>::Softmax* softmax,
                        const typename Fp32ForwardTypes<spec>::Outputs& out) {
  using Types = Fp32ForwardTypes<spec>;
  using Outputs = typename Types::Outputs;
  using Domain = typename Types::Domain;
  constexpr Fp32Tile tile = Types::tile;
  const Problem& p = a.problem;
  const int slice = arch::workgroup_id() / a.work.workgroups;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads),
                      arch::workgroup_id() % a.work.workgroups);
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
    Normalizer normalizer =
        normalize<Domain>(softmax[i].row_max, sum_16_lanes(softmax[i].sum), has_sink, sink);
    normalizer.factor *= dropout_scale;
    if (has_lse && thread_column() == 0 && query < sequence.q_rows)
      store_lse(a.outputs, sequence, item.head, query, normalizer.lse);
    const DType stored = opaque_dtype(p.dtype);
    float probe = normalizer.factor * 0.0f;  // NaN once something is not finite
    std::byte* row = first_row + Outputs::own_row(i) * row_bytes;
    ROCFLASH_UNROLL
    for (int j = 0; j < Outputs::own_columns; ++j) {
      const float x = out.at(i, j);
      probe = __builtin_fmaf(x, 0.0f, probe);
      const int column = columns_begin + Outputs::own_column(j);
      if (query < sequence.q_rows && column < columns_end)
        store_element(row, stored, column, in_use ? x * normalizer.factor : 0.0f);
    }
    const float probes = sum_16_lanes(probe);  // all lanes take part, also those past the sequence
    const bool is_non_finite = in_use && probes != 0;
    if (thread_column() == 0) queries[Outputs::own_row(i)].is_non_finite = is_non_finite;
  }

  arch::barrier();
  const ForwardArguments& reloaded = arch::reload_kernargs(a);
  ForwardOutputs outputs = reloaded.outputs;
  if (slice > 0) outputs.lse = {};
  for (int n = arch::thread() / arch::wave_size; n < tile.owned;
       n += tile.threads / arch::wave_size) {
    if (!arch::any(queries[n].is_non_finite)) continue;
    using Scores = ExactScores<DType::f32, Domain, true, true, Types::codes>;
    recompute_row(Scores{reloaded.problem, sequence, item.head, reloaded.caches, values},
                  QueryView(reloaded.problem.visibility, sequence, block_begin + n), outputs,
                  columns_begin, columns_end);
  }
}

template <KernelSpec spec>
void forward_fp32(const ForwardArguments& a) {
  using Types = Fp32ForwardTypes<spec>;
  using Scores = typename Types::Scores;
  using Outputs = typename Types::Outputs;
  using Domain = typename Types::Domain;
  constexpr Fp32Tile tile = Types::tile;

  ROCFLASH_SHARED_ARRAY float shared_lines[2][Types::floats];
  ROCFLASH_SHARED_ARRAY float shared_weights[tile.streamed * line_length(tile.owned)];
  ROCFLASH_SHARED_ARRAY std::int32_t visible_begin[tile.owned], visible_end[tile.owned];
  ROCFLASH_SHARED_ARRAY Fp32Query queries[tile.owned];
  ROCFLASH_SHARED_ARRAY float code_values[Types::quantized ? code_count : 1];

  const Problem& p = a.problem;
  const int slice = arch::workgroup_id() / a.work.workgroups;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads),
                      arch::workgroup_id() % a.work.workgroups);
  if (slice == 0) zero_unused_rows<tile.threads>(a, item, p.dtype);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.owned;
  if (block_begin >= sequence.q_rows) return;
  const std::int64_t kv_head = p.kv_head(item.head);
  if constexpr (Types::quantized) {
    fill_code_values((SharedFloat*)code_values, p.k.dtype, tile.threads);
    arch::barrier();
  }

  // Mask bounds of each query.
  if (arch::thread() < tile.owned) {
    const QueryView view(p.visibility, sequence, block_begin + arch::thread());
    visible_begin[arch::thread()] = view.begin;
    visible_end[arch::thread()] = view.end;
  }
  const VisibleKeys block_keys(p.visibility, sequence, arch::to_vgpr(block_begin), tile.owned);
  const Span visible = uniform_span(block_keys.by_any),
             visible_to_all = uniform_span(block_keys.by_all);
  const std::int32_t first_key = visible.begin / dropout_keys * dropout_keys;

  const RowSource q(p.q, p.head_dim, p.dtype, sequence.batch, sequence.q_row, sequence.sq,
                    item.head);
  const auto* values = (const SharedFloat*)code_values;
  const typename Types::Keys k(a, p.k, p.k_descale, p.head_dim, sequence, kv_head, values),
      v(a, p.v, p.v_descale, p.value_dim, sequence, kv_head, values);
  // Where Q·Kᵀ may overflow f32, both operands are multiplied with the square root of the scale.
  const bool splits_scale = products_overflow(p);
  const float operand_scale =
      arch::to_vgpr(splits_scale ? __builtin_sqrtf(__builtin_fabsf(p.scale)) : 1.0f);
  const float scale = arch::to_vgpr(splits_scale ? __builtin_copysignf(1.0f, p.scale) : p.scale);

  const ScoreMod score_mod(p, sequence, item.head);
  typename Types::Softmax softmax[Scores::own_rows];
  Outputs out;
  DoubleBuffer<Types::floats> memory(shared_lines);
  const int columns_begin = arch::to_vgpr(slice * tile.slice);
  // Instantiated for Q in registers and Q in shared memory: one loop for both exceeds the SGPRs.
  const auto main_loop = [&]<bool q_resident>() {
    typename Types::QueryStaging q_staging;
    typename Types::KeyStaging k_staging;
    typename Types::ValueStaging v_staging;
    [[maybe_unused]] float resident_q[q_resident ? Types::resident_columns / 4 : 1];
    if constexpr (q_resident) {
      const std::byte* row = q.clamped_row(block_begin + Scores::resident_row());
      ROCFLASH_UNROLL
      for (int n = 0; n < Types::resident_columns / 4; ++n) {
        const int column = 4 * n + Scores::resident_line();
        const float x = load_element(row, DType::f32, column < p.head_dim ? column : 0);
        resident_q[n] = column < p.head_dim ? x * operand_scale : 0.0f;
      }
    } else {
      q_staging.select_rows(q, block_begin);
    }
    _Pragma("clang loop unroll(disable)") for (std::int32_t begin = first_key; begin < visible.end;
                                               begin += tile.streamed) {
      // S = Q·Kᵀ
      Scores scores;
      if constexpr (q_resident) {
        k_staging.select_clamped_rows(k, begin);
        add_resident_products(scores, resident_q, k_staging, k, operand_scale, memory);
        v_staging.load_vectors(v, begin, columns_begin);
      } else {
        k_staging.select_rows(k, begin);
        add_products(scores, q_staging, q, k_staging, k, operand_scale, memory);
        v_staging.load(v, begin, columns_begin);
      }

      const bool masked = begin < visible_to_all.begin ||
                          begin + tile.streamed > visible_to_all.end ||
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
          score_mod.template apply_scaled<4, Domain>(OneQuery{query.index}, key, at, scale);
          if (masked) {
            query.begin = visible_begin[Scores::own_row(i + r)];
            query.end = visible_end[Scores::own_row(i + r)];
            ROCFLASH_UNROLL
            for (int n = 0; n < 4; ++n) s[r][n] = query.attends_to(key(n)) ? s[r][n] : -infinity;
          }
          // P = exp(S − row max)
          auto& row = softmax[i + r];
          const float largest = max_16_lanes(__builtin_fmaxf(__builtin_fmaxf(s[r][0], s[r][1]),
                                                             __builtin_fmaxf(s[r][2], s[r][3])));
          if (row.needs_rescale(largest)) {
            const float factor = row.rescale(largest);
            ROCFLASH_UNROLL
            for (int j = 0; j < Outputs::own_columns; ++j)
              out.set(i + r, j, out.at(i + r, j) * factor);
          }
          ROCFLASH_UNROLL
          for (int n = 0; n < 4; ++n) {
            s[r][n] = Domain::exp(s[r][n] - row.base());
            row.sum += s[r][n];
          }
          if (p.dropout.on()) score_mod.template drop<4, 4>(query.index, key, at);
        }
        ROCFLASH_UNROLL
        for (int n = 0; n < 4; ++n) {
          *(SharedFloat4*)(shared_weights + Scores::own_column(n) * line_length(tile.owned) +
                           Scores::own_row(i)) = Float4{s[0][n], s[1][n], s[2][n], s[3][n]};
        }
      }

      // O += P·V
      add_rows_as<q_resident>(out, shared_weights, tile.streamed, v_staging, v, begin,
                              columns_begin, memory);
    }
  };
  if constexpr (Types::resident_columns > 0) {
    if (p.head_dim <= Types::resident_columns && q.template is_vectorizable<4>() &&
        k.template is_vectorizable<tile.depth>() && v.template is_vectorizable<4>())
      main_loop.template operator()<true>();
    else
      main_loop.template operator()<false>();
  } else {
    main_loop.template operator()<false>();
  }

  store_outputs_fp32<spec>(arch::reload_kernargs(a), queries, values, softmax, out);
}

}  // namespace rocflash::kernel
