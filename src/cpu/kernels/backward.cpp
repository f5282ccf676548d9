// Backward in one pass over the score matrix: five GEMMs per tile, no recomputation.
//
// A work item owns one split of the keys of one sequence and KV head. It keeps a block of keys in
// lanes, accumulates dk and dv there, and adds its share of dq to a float matrix that only this
// split writes. Splits depend on the problem alone and their shares of dq are added in order, so
// results are independent of the number of threads. Gradients of the bias and of ALiBi slopes are
// accumulated in the same pass.
#include "cpu/kernels/entries.hpp"
#include "cpu/kernels/gradient_tile.hpp"
#include "cpu/kernels/option_gradients.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

// Clears whole vectors. The data is used immediately, and the `rep stos` of memset is slow to
// forward it: the barrier keeps the compiler from calling memset.
ROCFLASH_INLINE void clear(float* at, std::int64_t floats) {
  const Float zero = opaque(Float{});
  for (std::int64_t n = 0; n < floats; n += width) store(at + n, zero);
}

struct Block {
  std::int64_t batch, kv_head;
  Range keys, queries;  // and the queries that attend to them
  std::int64_t copy;    // of dq
  std::int64_t begun;   // queries before this one are initialized in this copy
  std::int64_t part;
};

template <class Gemm>
void run_block(const Problem& p, const BackwardTensors& t, const Delta& delta,
               const DqAccumulators& dq, const OptionAccumulators& options, const Block& item,
               float* memory) {
  const Range block = item.keys, queries = item.queries;
  constexpr int panel = Gemm::panel;
  const auto panels = static_cast<int>(blocks_of(block.size(), panel));
  GradientTile<Gemm> tile(p, panels, memory);
  tile.of_scores = t.dbias || t.dalibi;
  const int d = tile.d, dv = tile.dv;
  typename Gemm::ColumnOperand k_columns(tile.scratch, gradient_block(p), d);
  // Accumulators are [panel][column][lane]; those of a few keys are [key][column], without
  // transposition.
  constexpr bool in_rows = Gemm::vectors == 1 && !Gemm::packs;
  const auto sums_of = [&](int columns) {
    const std::int64_t floats =
        in_rows ? block.size() * padded(columns) : std::int64_t{panels} * panel * columns;
    float* sums = tile.scratch.take(floats);
    clear(sums, floats);
    return sums;
  };
  float *dk_sum = sums_of(d), *dv_sum = sums_of(dv);
  const auto sum_of = [&](float* sums, int columns, int n) {
    return Panel<float>{sums + std::int64_t{n} * columns * panel, panel};
  };

  const std::int64_t first_head = item.kv_head * p.gqa_group();
  const Head any(p, item.batch, first_head);
  const auto keys_of = [&](int n) {
    return Range{block.begin + n * panel, smaller(block.end, block.begin + (n + 1) * panel)};
  };
  for (int n = 0; n < panels; ++n) tile.load_keys(any, n, keys_of(n));
  const RowBlock k_rows = any.keys(block);
  k_columns.load(k_rows, any.scale.lanes);

  for (std::int64_t h = first_head; h < first_head + p.gqa_group(); ++h) {
    const Head head(p, item.batch, h);
    for (std::int64_t i = queries.begin; i < queries.end; i += stream_rows) {
      const Range here{i, smaller(queries.end, i + stream_rows)},
          next{here.end, smaller(queries.end, here.end + stream_rows)};
      const std::int64_t rows = here.size();
      tile.load_queries(head, t, delta, here);
      // Panels at either end may be fully masked for these queries.
      const Range visible_range =
          visible_keys(p.visibility, here, any.sequence.sq, any.sequence.sk);
      const auto first = static_cast<int>(larger(0, visible_range.begin - block.begin) / panel),
                 last = static_cast<int>(
                     smaller(panels, blocks_of(larger(0, visible_range.end - block.begin), panel)));
      const Range lanes{first * panel, smaller(block.size(), last * panel)};
      const std::int64_t row = head.sequence.q_row + i;
      const Panel<float> dq_rows{dq.rows(item.copy, head.b, h, row), dq.row_stride};
      float* means = t.dsinks ? dq.mean_rows(item.copy, head.b, h, row) : nullptr;
      const std::int64_t begun = smaller(rows, larger(0, item.begun - i));
      if (t.dq) clear(dq_rows.at(begun, 0).data, (rows - begun) * dq.row_stride);
      for (std::int64_t r = begun; means && r < rows; ++r) means[r] = 0;
      [[maybe_unused]] const bool packed_path = tile.can_pack(any, block),
                                  finite = tile.is_finite(panels, rows);
      const Panel<const float> gradients{tile.gradients.data, tile.gradients.stride};
      const auto add_sums = [&](int n) {
        if constexpr (Gemm::packs) {
          if (packed_path) {
            tile.differentiate_packed(head, n, {here, keys_of(n)}, finite);
            const auto packed = [&](int at) { return Range{at, at + rows}; };
            if (t.dv)
              tile.gemm_ops.accumulate_packed(tile.dout, packed(tile.weights_at),
                                              sum_of(dv_sum, dv, n));
            if (t.dk && finite)
              tile.gemm_ops.accumulate_packed(tile.q, packed(tile.gradients_at),
                                              sum_of(dk_sum, d, n));
            if (t.dk && !finite)
              tile.gemm_ops.accumulate_packed(tile.q, packed(tile.gradients_at),
                                              gradients.at(0, n * panel), sum_of(dk_sum, d, n));
            return;
          }
        }
        tile.differentiate(head, n, {here, keys_of(n)});
        if (t.dbias)
          add_bias_gradient(head, t, options.bias, {here, keys_of(n)}, tile.score_gradients(),
                            panel);
        if (t.dalibi)
          options.slopes.at(head.b, h, item.part) +=
              slope_gradient(head, {here, keys_of(n)}, tile.score_gradients(), panel);
        if (means)
          for (std::int64_t r = 0; r < rows; ++r) means[r] += tile.mean[r];
        const auto accumulate = [&](const auto& values, Panel<float> weights, float* sums,
                                    int columns, bool of_gradients) {
          const Panel<const float> by{weights.data, weights.stride};
          if constexpr (in_rows) {
            tile.gemm_ops.accumulate_in_rows(values, rows, by, block.size(),
                                             {sums, padded(columns)});
          } else {
            tile.gemm_ops.accumulate(values, rows, by, sum_of(sums, columns, n), of_gradients);
          }
        };
        if (t.dv) accumulate(tile.dout, {tile.weights, panel}, dv_sum, dv, false);
        if (t.dk) accumulate(tile.q, tile.gradients.at(0, n * panel), dk_sum, d, true);
      };
      const auto add_query_gradients = [&] {
        if constexpr (Gemm::packs)
          if (packed_path)
            return finite ? tile.gemm_ops.reduce_lanes_packed(rows, lanes, k_columns, d, dq_rows)
                          : tile.gemm_ops.reduce_lanes_packed(rows, lanes, k_columns, k_rows,
                                                              gradients, dq_rows);
        tile.gemm_ops.reduce_lanes(gradients, rows, lanes, k_columns, k_rows, dq_rows);
      };
      for (int n = first; n < last; ++n) {
        prefetch(head.queries_of(p.q, next), n - first, last - first);
        prefetch(head.queries_of(t.dout, next), n - first, last - first);
        if (t.dq) prefetch(dq_rows.data, rows * dq_rows.stride, n - first, last - first);
        tile.score(n, rows);
        add_sums(n);
      }
      if (t.dq && !lanes.empty()) add_query_gradients();
    }
  }

  double factors[panel];
  const auto store_sums = [&](const Rows& to, float* sums, double factor) {
    if (!to) return;
    for (double& f : factors) f = factor;
    if constexpr (in_rows) {
      const RowBlock rows = any.keys_of(to, block);
      for (int n = 0; n < rows.count; ++n) {
        float* sum = sums + n * padded(to.columns);
        for (int c = 0; c < to.columns; c += width) store(sum + c, scaled(load(sum + c), factors));
        store_row(rows.row(n), to.dtype, sum, to.columns);
      }
    } else {
      for (int n = 0; n < panels; ++n)
        store_lanes(sum_of(sums, to.columns, n).data, panel, factors, any.keys_of(to, keys_of(n)));
    }
  };
  const auto dropout_scale = static_cast<double>(p.dropout.scale());
  store_sums(t.dk, dk_sum, any.scale.of_rows() * dropout_scale);
  store_sums(t.dv, dv_sum, dropout_scale);
}

// Calls body<Gemm> for a block of keys and the queries that attend to it.
template <class Body>
ROCFLASH_INLINE void with_gradient_gemm(const Problem& p, Range keys, Range queries, Body body) {
  // Packing bf16 pairs of a few keys and queries costs more than it saves.
  if (p.dtype != DType::f32 && keys.size() <= width && queries.size() <= stream_rows)
    return body.template operator()<WholeF32<1>>();
  if (needs_f32_products(p)) return with_f32_gemm(keys.size(), p.dtype, body);
  with_gemm(keys.size(), p.dtype, p.k.dtype, body);
}

}  // namespace

void statistics(const Problem& p, const BackwardTensors& t, const Delta& to, WorkItem item,
                float* memory) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  find_statistics(head, t, to, block, gradient_block(p), memory, [&](Range keys, auto body) {
    const Range queries = attending_queries(p.visibility, keys, head.sequence.sq, head.sequence.sk);
    with_gradient_gemm(p, keys, queries, body);
  });
}

void delta(const Problem& p, const BackwardTensors& t, const Delta& to, WorkItem item,
           float* memory) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  Scratch scratch(memory);
  float *dout = scratch.take(std::int64_t{width} * p.value_dim),
        *out = scratch.take(std::int64_t{width} * p.value_dim);  // [column][lane]
  const std::int64_t run = p.dtype == DType::f32 ? summation_block : max_head_dim;
  for (std::int64_t i = block.begin; i < block.end; i += width) {
    const Range queries{i, smaller(block.end, i + width)};
    load_lanes(dout, width, head.queries_of(t.dout, queries));
    load_lanes(out, width, head.queries_of(t.out, queries));
    // The same order and precision as the products it is subtracted from, and also without the
    // dropout scale. For a query that attends to one key the difference is then exactly 0.
    Float sum{};
    for (std::int64_t begin = 0; begin < p.value_dim; begin += run) {
      Float part{};
      for (std::int64_t c = begin; c < smaller(p.value_dim, begin + run); ++c) {
        Float value = load(out + c * width);
        if (p.dropout.on()) value /= p.dropout.scale();
        part = add_products(part, load(dout + c * width), value);
      }
      sum += part;
    }
    float* at = to.rows(head.b, head.h, head.sequence.q_row + i);
    for (int n = 0; n < queries.size(); ++n)
      at[n] = sum[n] - to.lse_gradient(p, t, head.b, head.h, head.sequence.q_row + i + n);
  }
}

void gradients(const Problem& p, const BackwardTensors& t, const Delta& delta,
               const DqAccumulators& dq, const OptionAccumulators& options, WorkItem item,
               float* scratch) {
  const Sequence s = p.lengths.sequence(item.batch);
  const KeyPartition& parts = dq.parts;
  std::int64_t begun = 0;
  for (std::int64_t unit = item.block; unit * parts.unit < s.sk; unit += parts.parts) {
    const std::int64_t end = smaller(s.sk, (unit + 1) * parts.unit);
    for (std::int64_t j = unit * parts.unit; j < end; j += gradient_block(p)) {
      const Range keys{j, smaller(end, j + gradient_block(p))},
          queries = attending_queries(p.visibility, keys, s.sq, s.sk);
      const Block block{item.batch,          item.head, keys,      queries,
                        unit % parts.copies, begun,     item.block};
      with_gradient_gemm(p, keys, queries, [&]<class Gemm>() {
        run_block<Gemm>(p, t, delta, dq, options, block, scratch);
      });
      if (!queries.empty()) begun = larger(begun, queries.end);
    }
  }
}

void query_gradients(const Problem& p, const BackwardTensors& t, const DqAccumulators& dq,
                     WorkItem item) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  const auto factor =
      static_cast<float>(head.scale.of_lanes() * static_cast<double>(p.dropout.scale()));
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    const std::int64_t row = head.sequence.q_row + i;
    float sum[max_head_dim];
    clear(sum, padded(p.head_dim));
    dq.for_each_copy(head.visible(i), [&](std::int64_t copy) {
      const float* share = dq.rows(copy, head.b, head.h, row);
      for (int c = 0; c < p.head_dim; c += width) store(sum + c, load(sum + c) + load(share + c));
    });
    for (int c = 0; c < p.head_dim; c += width) store(sum + c, load(sum + c) * factor);
    store_row(t.dq.row(head.b, row, head.h), t.dq.dtype, sum, p.head_dim);
  }
}

void bias_gradients(const Problem& p, const BackwardTensors& t, const BiasAccumulators& sums,
                    Range rows) {
  const ScoreSizes sizes = t.dbias_sizes(p);
  const float scale = p.dropout.scale();
  constexpr int piece = 8 * lane_rows;
  float sum[piece];
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t i = row % sizes.queries, h = row / sizes.queries % sizes.heads,
                       b = row / sizes.queries / sizes.heads;
    std::byte* to = t.dbias.row(b, h, i);
    for (std::int64_t j = 0; j < sizes.keys; j += piece) {
      const auto keys = static_cast<int>(smaller(piece, sizes.keys - j));
      const float* from = sums.row(b, h, i) + j;
      if (sums.key_step == 0) {
        sum[0] = 0;
        for (int n = 0; n < sums.copies; ++n) sum[0] += from[n * sums.copy_stride];
        sum[0] *= scale;
      } else {
        for (int m = 0; m < keys; m += width) {
          Float total{};
          for (int n = 0; n < sums.copies; ++n) total += load(from + n * sums.copy_stride + m);
          store(sum + m, total * scale);
        }
      }
      store_elements(
          to + j * t.dbias.key_stride * static_cast<std::int64_t>(size_of(t.dbias.dtype)),
          t.dbias.dtype, t.dbias.key_stride, sum, keys);
    }
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
