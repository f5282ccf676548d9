// Backward in one pass over the score matrix: five products a tile, none of them twice.
//
// A work item owns some blocks of keys (a part) of one sequence and one key head. It keeps a block
// of keys in lanes, sums its dk and dv there, and adds its share of dq to a matrix of floats, in
// rows that only this part writes. The parts are fixed by the problem, and their shares of dq are
// added in order at the end: results never depend on the number of threads. Gradients of the bias
// and of slopes are summed along the way.
#include "cpu/kernels/entries.hpp"
#include "cpu/kernels/gradient.hpp"
#include "cpu/kernels/options.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

// Whole vectors. What is cleared here is needed at once, and memset's string instructions are slow
// to hand it over: the barrier keeps the compiler from calling it.
ROCFLASH_INLINE void clear(float* at, std::int64_t floats) {
  const Float zero = opaque(Float{});
  for (std::int64_t n = 0; n < floats; n += width) store(at + n, zero);
}

struct Block {
  std::int64_t batch, kv_head;
  Range keys, queries;  // and those that see them
  std::int64_t copy;    // of dq
  std::int64_t begun;   // queries before this one have sums there already
  std::int64_t part;
};

template <class Products>
void run_block(const Problem& p, const BackwardTensors& t, const Delta& delta,
               const PartialQueryGradients& dq, const OptionSums& options, const Block& item,
               float* memory) {
  const Range block = item.keys, queries = item.queries;
  constexpr int panel = Products::panel;
  const auto panels = static_cast<int>(blocks_of(block.size(), panel));
  GradientTile<Products> tile(p, panels, memory);
  tile.of_scores = t.dbias || t.dalibi;
  const int d = tile.d, dv = tile.dv;
  typename Products::InColumns k_columns(tile.scratch, gradient_block(p), d);
  // Sums are [panel][column][lane]; those of a few keys [key][column], which need not be turned.
  constexpr bool in_rows = Products::vectors == 1 && !Products::packs;
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

  const std::int64_t first_head = item.kv_head * p.group();
  const Head any(p, item.batch, first_head);
  const auto keys_of = [&](int n) {
    return Range{block.begin + n * panel, smaller(block.end, block.begin + (n + 1) * panel)};
  };
  for (int n = 0; n < panels; ++n) tile.load_keys(any, n, keys_of(n));
  const RowBlock k_rows = any.keys_of(p.k, block);
  k_columns.load(k_rows, any.scale.lanes);

  for (std::int64_t h = first_head; h < first_head + p.group(); ++h) {
    const Head head(p, item.batch, h);
    for (std::int64_t i = queries.begin; i < queries.end; i += stream_rows) {
      const Range here{i, smaller(queries.end, i + stream_rows)},
          next{here.end, smaller(queries.end, here.end + stream_rows)};
      const std::int64_t rows = here.size();
      tile.load_queries(head, t, delta, here);
      // Panels at either end may lie outside of what these queries see.
      const Range seen = visible_keys(p.visibility, here, any.sequence.sq, any.sequence.sk);
      const auto first = static_cast<int>(larger(0, seen.begin - block.begin) / panel),
                 last = static_cast<int>(
                     smaller(panels, blocks_of(larger(0, seen.end - block.begin), panel)));
      const Range lanes{first * panel, smaller(block.size(), last * panel)};
      const std::int64_t row = head.sequence.q_row + i;
      const Panel<float> dq_rows{dq.rows(item.copy, head.b, h, row), dq.row_stride};
      float* means = t.dsinks ? dq.mean_rows(item.copy, head.b, h, row) : nullptr;
      const std::int64_t begun = smaller(rows, larger(0, item.begun - i));
      if (t.dq) clear(dq_rows.at(begun, 0).data, (rows - begun) * dq.row_stride);
      for (std::int64_t r = begun; means && r < rows; ++r) means[r] = 0;
      [[maybe_unused]] const bool simple = tile.is_simple(any, block),
                                  finite = tile.is_finite(panels, rows);
      const Panel<const float> gradients{tile.gradients.data, tile.gradients.stride};
      const auto add_sums = [&](int n) {
        if constexpr (Products::packs) {
          if (simple) {
            tile.differentiate_plain(head, n, {here, keys_of(n)}, finite);
            const auto packed = [&](int at) { return Range{at, at + rows}; };
            if (t.dv)
              tile.products.weigh_packed(tile.dout, packed(tile.weights_at), sum_of(dv_sum, dv, n));
            if (t.dk && finite)
              tile.products.weigh_packed(tile.q, packed(tile.gradients_at), sum_of(dk_sum, d, n));
            if (t.dk && !finite)
              tile.products.weigh_packed(tile.q, packed(tile.gradients_at),
                                         gradients.at(0, n * panel), sum_of(dk_sum, d, n));
            return;
          }
        }
        tile.differentiate(head, n, {here, keys_of(n)});
        if (t.dbias)
          add_to_bias(head, t, options.bias, {here, keys_of(n)}, tile.score_gradients(), panel);
        if (t.dalibi)
          options.slopes.at(head.b, h, item.part) +=
              slope_gradient(head, {here, keys_of(n)}, tile.score_gradients(), panel);
        if (means)
          for (std::int64_t r = 0; r < rows; ++r) means[r] += tile.mean[r];
        const auto weigh = [&](const auto& values, Panel<float> weights, float* sums, int columns,
                               bool of_gradients) {
          const Panel<const float> by{weights.data, weights.stride};
          if constexpr (in_rows) {
            tile.products.weigh_in_rows(values, rows, by, block.size(), {sums, padded(columns)});
          } else {
            tile.products.weigh(values, rows, by, sum_of(sums, columns, n), of_gradients);
          }
        };
        if (t.dv) weigh(tile.dout, {tile.weights, panel}, dv_sum, dv, false);
        if (t.dk) weigh(tile.q, tile.gradients.at(0, n * panel), dk_sum, d, true);
      };
      const auto add_query_gradients = [&] {
        if constexpr (Products::packs)
          if (simple)
            return finite ? tile.products.spread_packed(rows, lanes, k_columns, d, dq_rows)
                          : tile.products.spread_packed(rows, lanes, k_columns, k_rows, gradients,
                                                        dq_rows);
        tile.products.spread(gradients, rows, lanes, k_columns, k_rows, dq_rows);
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

}  // namespace

void delta(const Problem& p, const BackwardTensors& t, const Delta& to, WorkItem item,
           float* memory) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  Scratch scratch(memory);
  float *dout = scratch.take(std::int64_t{width} * p.value_dim),
        *out = scratch.take(std::int64_t{width} * p.value_dim);  // [column][lane]
  const std::int64_t run = p.dtype == DType::f32 ? run_of_terms : max_head_dim;
  for (std::int64_t i = block.begin; i < block.end; i += width) {
    const Range queries{i, smaller(block.end, i + width)};
    load_lanes(dout, width, head.queries_of(t.dout, queries));
    load_lanes(out, width, head.queries_of(t.out, queries));
    // In the order and precision of the products it is subtracted from, and like them without
    // dropout's scale: where a query sees one key only, the difference is then 0, as it should be.
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
    for (int n = 0; n < queries.size(); ++n) at[n] = sum[n];
  }
}

void gradients(const Problem& p, const BackwardTensors& t, const Delta& delta,
               const PartialQueryGradients& dq, const OptionSums& options, WorkItem item,
               float* scratch) {
  const Sequence s = p.lengths.sequence(item.batch);
  const GradientParts& parts = dq.parts;
  std::int64_t begun = 0;
  for (std::int64_t unit = item.block; unit * parts.unit < s.sk; unit += parts.parts) {
    const std::int64_t end = smaller(s.sk, (unit + 1) * parts.unit);
    for (std::int64_t j = unit * parts.unit; j < end; j += gradient_block(p)) {
      const Range keys{j, smaller(end, j + gradient_block(p))},
          queries = seeing_queries(p.visibility, keys, s.sq, s.sk);
      const Block block{item.batch,          item.head, keys,      queries,
                        unit % parts.copies, begun,     item.block};
      const auto run = [&]<class Products>() {
        run_block<Products>(p, t, delta, dq, options, block, scratch);
      };
      // Pairs of a few keys and queries cost more to arrange than they save.
      if (p.dtype != DType::f32 && keys.size() <= width && queries.size() <= stream_rows) {
        run.template operator()<InLongRuns<1>>();
      } else {
        with_products(keys.size(), p.dtype, p.k.dtype, run);
      }
      if (!queries.empty()) begun = larger(begun, queries.end);
    }
  }
}

void query_gradients(const Problem& p, const BackwardTensors& t, const PartialQueryGradients& dq,
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
    dq.over_copies(head.visible(i), [&](std::int64_t copy) {
      const float* share = dq.rows(copy, head.b, head.h, row);
      for (int c = 0; c < p.head_dim; c += width) store(sum + c, load(sum + c) + load(share + c));
    });
    for (int c = 0; c < p.head_dim; c += width) store(sum + c, load(sum + c) * factor);
    store_row(t.dq.row(head.b, row, head.h), t.dq.dtype, sum, p.head_dim);
  }
}

void bias_gradients(const Problem& p, const BackwardTensors& t, const BiasSums& sums, Range rows) {
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
