// Backward in one pass over the score matrix: five products a tile, none of them twice.
//
// A work item owns some blocks of keys (a part) of one sequence and one key head. It keeps a block
// of keys in lanes, sums its dk and dv there, and adds its share of dq to a matrix of floats, in
// rows that only this part writes. The parts are fixed by the problem, and their shares of dq are
// added in order at the end: results never depend on the number of threads.
#include "cpu/isa/gradient.hpp"
#include "cpu/isa/kernels.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

ROCFLASH_INLINE void clear(float* at, std::int64_t floats) {
  __builtin_memset(at, 0, sizeof(float) * static_cast<std::size_t>(floats));
}

struct Block {
  std::int64_t batch, kv_head;
  Range keys, queries;  // and those that see them
  std::int64_t copy;    // of dq
  std::int64_t begun;   // queries before this one have sums there already
};

template <class Products>
void run_block(const Problem& p, const BackwardTensors& t, const Delta& delta,
               const PartialQueryGradients& dq, const Block& item, float* memory) {
  const Range block = item.keys, queries = item.queries;
  constexpr int panel = Products::panel;
  const auto panels = static_cast<int>(blocks_of(block.size(), panel));
  GradientTile<Products> tile(p, panels, memory);
  const int d = tile.d, dv = tile.dv;
  typename Products::InColumns k_columns(tile.scratch, gradient_block(p), d);
  const auto sums_of = [&](int columns) {  // [panel][column][lane]
    const std::int64_t floats = std::int64_t{panels} * panel * columns;
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
  k_columns.load(k_rows);

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
      if (means) clear(means + begun, rows - begun);
      [[maybe_unused]] const bool plain = k_columns.finite && tile.is_plain(any, block, here);
      const auto add_sums = [&](int n) {
        if constexpr (Products::packs) {
          if (plain) {
            tile.differentiate_plain(head, n, {here, keys_of(n)});
            const auto packed = [&](int at) { return Range{at, at + rows}; };
            if (t.dv)
              tile.products.weigh_packed(tile.dout, packed(tile.weights_at), sum_of(dv_sum, dv, n));
            if (t.dk)
              tile.products.weigh_packed(tile.q, packed(tile.gradients_at), sum_of(dk_sum, d, n));
            return;
          }
        }
        tile.differentiate(head, n, {here, keys_of(n)});
        if (means)
          for (std::int64_t r = 0; r < rows; ++r) means[r] += tile.mean[r];
        if (t.dv)
          tile.products.weigh(tile.dout, rows, {tile.weights, panel}, sum_of(dv_sum, dv, n));
        if (t.dk) {
          const Panel<float> gradients = tile.gradients.at(0, n * panel);
          tile.products.weigh(tile.q, rows, {gradients.data, gradients.stride},
                              sum_of(dk_sum, d, n), true);
        }
      };
      const auto add_query_gradients = [&] {
        if constexpr (Products::packs)
          if (plain) return tile.products.spread_packed(rows, lanes, k_columns, d, dq_rows);
        tile.products.spread({tile.gradients.data, tile.gradients.stride}, rows, lanes, k_columns,
                             k_rows, dq_rows);
      };
      for (int n = first; n < last; ++n) {
        prefetch(head.queries_of(p.q, next), n - first, last - first);
        prefetch(head.queries_of(t.dout, next), n - first, last - first);
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
    for (int n = 0; n < panels; ++n)
      store_lanes(sum_of(sums, to.columns, n).data, panel, factors, any.keys_of(to, keys_of(n)));
  };
  const auto dropout_scale = static_cast<double>(p.dropout.scale());
  store_sums(t.dk, dk_sum, static_cast<double>(p.scale) * dropout_scale);
  store_sums(t.dv, dv_sum, dropout_scale);
}

}  // namespace

void delta(const Problem& p, const BackwardTensors& t, const Delta& to, WorkItem item) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  const RowBlock dout = head.queries_of(t.dout, block), out = head.queries_of(t.out, block);
  float a[max_head_dim], b[max_head_dim];
  const auto run = p.dtype == DType::f32 ? static_cast<int>(run_of_terms) : max_head_dim;
  for (int n = 0; n < dout.count; ++n) {
    convert_row(a, dout.row(n), dout.rows.dtype, p.value_dim);
    const std::int64_t i = block.begin + n;
    convert_row(b, out.row(n), out.rows.dtype, p.value_dim);
    for (int c = 0; c < p.value_dim && p.dropout.on(); ++c) b[c] /= p.dropout.scale();
    // In the order and precision of the products it is subtracted from, and like them without
    // dropout's scale: where a query sees one key only, the difference is then 0, as it should be.
    float sum = 0;
    for (int begin = 0; begin < p.value_dim; begin += run) {
      float part = 0;
      for (int c = begin; c < p.value_dim && c < begin + run; ++c) part = fused(a[c], b[c], part);
      sum += part;
    }
    *to.rows(head.b, head.h, head.sequence.q_row + i) = sum;
  }
}

void gradients(const Problem& p, const BackwardTensors& t, const Delta& delta,
               const PartialQueryGradients& dq, WorkItem item, float* scratch) {
  const Sequence s = p.lengths.sequence(item.batch);
  const GradientParts& parts = dq.parts;
  std::int64_t begun = 0;
  for (std::int64_t unit = item.block; unit * parts.unit < s.sk; unit += parts.parts) {
    const std::int64_t end = smaller(s.sk, (unit + 1) * parts.unit);
    for (std::int64_t j = unit * parts.unit; j < end; j += gradient_block(p)) {
      const Range keys{j, smaller(end, j + gradient_block(p))},
          queries = seeing_queries(p.visibility, keys, s.sq, s.sk);
      const Block block{item.batch, item.head, keys, queries, unit % parts.copies, begun};
      with_products(keys.size(), p.dtype, p.k.dtype, [&]<class Products>() {
        run_block<Products>(p, t, delta, dq, block, scratch);
      });
      if (!queries.empty()) begun = larger(begun, queries.end);
    }
  }
}

void query_gradients(const Problem& p, const BackwardTensors& t, const PartialQueryGradients& dq,
                     WorkItem item) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  const float factor = p.scale * p.dropout.scale();
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    const std::int64_t row = head.sequence.q_row + i;
    float sum[max_head_dim] = {};
    dq.over_copies(head.visible(i), [&](std::int64_t copy) {
      const float* share = dq.rows(copy, head.b, head.h, row);
      for (int c = 0; c < p.head_dim; c += width) store(sum + c, load(sum + c) + load(share + c));
    });
    for (int c = 0; c < p.head_dim; c += width) store(sum + c, load(sum + c) * factor);
    store_row(t.dq.row(head.b, row, head.h), t.dq.dtype, sum, p.head_dim);
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
