// Backward in one pass over the score matrix: five products a tile, none of them twice.
//
// A work item owns some blocks of keys (a chunk) of one sequence and one key head. It keeps a block
// of keys in lanes, sums its dk and dv there, and adds its share of dq to a matrix of floats that
// only this chunk writes. The chunks are fixed by the problem, and their shares of dq are added in
// order at the end: results never depend on the number of threads.
#include "cpu/isa/gemm.hpp"
#include "cpu/isa/gradient.hpp"
#include "cpu/isa/kernels.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

template <int vectors>
void run_block(const Problem& p, const BackwardTensors& t, const Delta& delta,
               const PartialQueryGradients& dq, const WorkItem& item, Range block, float* memory) {
  GradientTile<vectors> tile(p, memory);
  constexpr int panel = tile.panel;
  const int d = tile.d, dv = tile.dv;
  float* dk_sum = tile.scratch.take(std::int64_t{lane_rows} * d);   // [panel][column][lane]
  float* dv_sum = tile.scratch.take(std::int64_t{lane_rows} * dv);  // likewise
  float* k_rows = tile.scratch.take(lane_rows * padded(d));         // [key][column]
  __builtin_memset(dk_sum, 0, sizeof(float) * lane_rows * static_cast<std::size_t>(d));
  __builtin_memset(dv_sum, 0, sizeof(float) * lane_rows * static_cast<std::size_t>(dv));

  const std::int64_t first_head = item.head * p.group();
  const Head any(p, item.batch, first_head);
  const auto keys_of = [&](int n) {
    return Range{block.begin + n * panel, smaller(block.end, block.begin + (n + 1) * panel)};
  };
  for (int n = 0; n < tile.panels && !keys_of(n).empty(); ++n) tile.load_keys(any, n, keys_of(n));
  const bool k_finite = load_rows(k_rows, padded(d), any.keys_of(p.k, block));

  const Range queries = seeing_queries(p.visibility, block, any.sequence.sq, any.sequence.sk);
  for (std::int64_t h = first_head; h < first_head + p.group(); ++h) {
    const Head head(p, item.batch, h);
    for (std::int64_t i = queries.begin; i < queries.end; i += stream_rows) {
      const Range here{i, smaller(queries.end, i + stream_rows)};
      const std::int64_t rows = here.size();
      tile.load_queries(head, t, delta, here);
      for (int n = 0; n < tile.panels && !keys_of(n).empty(); ++n) {
        tile.compute(head, n, {here, keys_of(n)});
        if (t.dsinks) {
          float* mean = dq.means.rows(head.b, h, head.sequence.q_row + i) +
                        item.block * dq.means_chunk_stride;
          for (std::int64_t r = 0; r < rows; ++r) mean[r] += tile.mean[r];
        }
        if (t.dv) {
          weigh<vectors, Into::add>(tile.dout_finite, run_of_terms(p.dtype), dv, rows,
                                    {tile.dout, 1, padded(dv)}, {tile.weights, panel},
                                    {dv_sum + std::int64_t{n} * dv * panel, panel});
        }
        if (t.dk) {
          weigh<vectors, Into::add>(tile.q_finite, run_of_terms(p.dtype), d, rows,
                                    {tile.q, 1, padded(d)}, {tile.gradients, panel},
                                    {dk_sum + std::int64_t{n} * d * panel, panel});
        }
        if (t.dq) {
          weigh_columns(k_finite, run_of_terms(p.dtype), rows, keys_of(n).size(),
                        {tile.gradients, panel, 1}, {k_rows + n * panel * padded(d), padded(d)},
                        {dq.rows(item.block, head.b, h, head.sequence.q_row + i), dq.row_stride},
                        d);
        }
      }
    }
  }

  double factors[panel];
  const auto store_sums = [&](const Rows& to, const float* sums, double factor) {
    if (!to) return;
    for (double& f : factors) f = factor;
    for (int n = 0; n < tile.panels && !keys_of(n).empty(); ++n)
      store_lanes(sums + std::int64_t{n} * to.columns * panel, panel, factors,
                  any.keys_of(to, keys_of(n)));
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
  const int run = run_of_terms(p.dtype);
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
      for (int c = begin; c < p.value_dim && c < begin + run; ++c) part += a[c] * b[c];
      sum += part;
    }
    *to.rows(head.b, head.h, head.sequence.q_row + i) = sum;
  }
}

void gradients(const Problem& p, const BackwardTensors& t, const Delta& delta,
               const PartialQueryGradients& dq, WorkItem item, float* scratch) {
  const std::int64_t sk = p.lengths.sequence(item.batch).sk;
  // Every chunks-th block, so that a causal problem's long and short blocks are spread evenly.
  for (std::int64_t n = item.block; n < blocks_of(sk); n += dq.chunks) {
    const Range block{n * lane_rows, smaller(sk, (n + 1) * lane_rows)};
    with_panel(block.size(),
               [&]<int vectors>() { run_block<vectors>(p, t, delta, dq, item, block, scratch); });
  }
}

void query_gradients(const Problem& p, const BackwardTensors& t, const PartialQueryGradients& dq,
                     WorkItem item) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    const std::int64_t row = head.sequence.q_row + i;
    float* sum = dq.rows(0, head.b, head.h, row);
    for (int c = 0; c < p.head_dim; c += width) {
      Float total = load(sum + c);
      for (int chunk = 1; chunk < dq.chunks; ++chunk)
        total += load(dq.rows(chunk, head.b, head.h, row) + c);
      store(sum + c, total * (p.scale * p.dropout.scale()));
    }
    store_row(t.dq.row(head.b, row, head.h), t.dq.dtype, sum, p.head_dim);
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
