// Backward in two passes over the score matrix, each recomputing it tile by tile from q, k and lse:
// one holds keys in lanes and streams queries past them (dk, dv), one holds queries and streams
// keys (dq). Each output element is summed by one thread in one order, so results never depend on
// the number of threads.
#include "cpu/isa/gradient.hpp"
#include "cpu/isa/kernels.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

template <int vectors>
void run_keys(const Problem& p, const BackwardTensors& t, const Delta& delta, const WorkItem& item,
              Range block, float* memory) {
  using KeyPass = Pass<Lanes::keys, vectors>;
  KeyPass pass(p, t, delta, memory);
  const std::int64_t first_head = item.head * p.group();
  const auto keys_of = [&](int n) { return KeyPass::part(block, n); };
  const Head any(p, item.batch, first_head);
  for (int n = 0; n < KeyPass::panels && !keys_of(n).empty(); ++n) {
    load_lanes(pass.lane_d + std::int64_t{n} * pass.d * pass.panel, pass.panel,
               any.keys_of(p.k, keys_of(n)));
    load_lanes(pass.lane_dv + std::int64_t{n} * pass.dv * pass.panel, pass.panel,
               any.keys_of(p.v, keys_of(n)));
  }
  const Range queries = seeing_queries(p.visibility, block, any.sequence.sq, any.sequence.sk);
  for (std::int64_t h = first_head; h < first_head + p.group(); ++h) {
    const Head head(p, item.batch, h);
    for (std::int64_t i = queries.begin; i < queries.end; i += stream_rows) {
      const Range here{i, smaller(queries.end, i + stream_rows)};
      pass.stream(head.queries_of(p.q, here), head.queries_of(t.dout, here));
      pass.statistics.load(head, t, delta, here);
      for (int n = 0; n < KeyPass::panels && !keys_of(n).empty(); ++n) {
        pass.tile(head, n, {here, keys_of(n)});
        KeyPass::accumulate(pass.sum_dv + std::int64_t{n} * pass.dv * pass.panel, pass.dv,
                            pass.stream_dv, pass.stream_dv_finite, here.size(), pass.scores);
        KeyPass::accumulate(pass.sum_d + std::int64_t{n} * pass.d * pass.panel, pass.d,
                            pass.stream_d, pass.stream_d_finite, here.size(), pass.gradients);
      }
    }
  }
  for (int n = 0; n < KeyPass::panels && !keys_of(n).empty(); ++n) {
    if (t.dk) KeyPass::store_scaled(pass.sum_d, pass.d, n, p.scale, any.keys_of(t.dk, keys_of(n)));
    if (t.dv)
      KeyPass::store_scaled(pass.sum_dv, pass.dv, n, p.dropout.scale(),
                            any.keys_of(t.dv, keys_of(n)));
  }
}

template <int vectors>
void run_queries(const Problem& p, const BackwardTensors& t, const Delta& delta,
                 const WorkItem& item, Range block, float* memory) {
  using QueryPass = Pass<Lanes::queries, vectors>;
  QueryPass pass(p, t, delta, memory);
  const Head head(p, item.batch, item.head);
  const auto queries_of = [&](int n) { return QueryPass::part(block, n); };
  for (int n = 0; n < QueryPass::panels && !queries_of(n).empty(); ++n) {
    load_lanes(pass.lane_d + std::int64_t{n} * pass.d * pass.panel, pass.panel,
               head.queries_of(p.q, queries_of(n)));
    load_lanes(pass.lane_dv + std::int64_t{n} * pass.dv * pass.panel, pass.panel,
               head.queries_of(t.dout, queries_of(n)));
  }
  pass.statistics.load(head, t, delta, block);
  Range keys = visible_keys(p.visibility, block, head.sequence.sq, head.sequence.sk);
  keys.begin = floor_to(keys.begin, dropout_keys_per_call);
  for (std::int64_t j = keys.begin; j < keys.end; j += stream_rows) {
    const Range here{j, smaller(keys.end, j + stream_rows)};
    pass.stream(head.keys_of(p.k, here), head.keys_of(p.v, here));
    for (int n = 0; n < QueryPass::panels && !queries_of(n).empty(); ++n) {
      pass.tile(head, n, {queries_of(n), here});
      QueryPass::accumulate(pass.sum_d + std::int64_t{n} * pass.d * pass.panel, pass.d,
                            pass.stream_d, pass.stream_d_finite, here.size(), pass.gradients);
    }
  }
  for (int n = 0; n < QueryPass::panels && !queries_of(n).empty(); ++n)
    QueryPass::store_scaled(pass.sum_d, pass.d, n, p.scale, head.queries_of(t.dq, queries_of(n)));
}

}  // namespace

void delta(const Problem& p, const BackwardTensors& t, const Delta& to, WorkItem item) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  const RowBlock dout = head.queries_of(t.dout, block), out = head.queries_of(t.out, block);
  float a[max_head_dim], b[max_head_dim];
  for (int n = 0; n < dout.count; ++n) {
    convert_row(a, dout.row(n), dout.rows.dtype, p.value_dim);
    convert_row(b, out.row(n), out.rows.dtype, p.value_dim);
    double sum = 0;
    for (int c = 0; c < p.value_dim; ++c)
      sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    *to.rows(head.b, head.h, head.sequence.q_row + block.begin + n) = static_cast<float>(sum);
  }
}

void key_gradients(const Problem& p, const BackwardTensors& t, const Delta& delta, WorkItem item,
                   float* scratch) {
  const Sequence s = p.lengths.sequence(item.batch);
  const Range block{item.block * lane_rows, smaller(s.sk, (item.block + 1) * lane_rows)};
  with_panel(block.size(),
             [&]<int vectors>() { run_keys<vectors>(p, t, delta, item, block, scratch); });
}

void query_gradients(const Problem& p, const BackwardTensors& t, const Delta& delta, WorkItem item,
                     float* scratch) {
  const Sequence s = p.lengths.sequence(item.batch);
  const Range block{item.block * lane_rows, smaller(s.sq, (item.block + 1) * lane_rows)};
  with_panel(block.size(),
             [&]<int vectors>() { run_queries<vectors>(p, t, delta, item, block, scratch); });
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
