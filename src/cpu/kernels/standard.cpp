// Naive attention with the same vector kernels: all scores are materialized, one stage after the
// other. It is the baseline for comparisons, so it does what a framework without a fused kernel
// does, as fast as these kernels allow. Like a framework it also computes masked scores.
#include "cpu/kernels/entries.hpp"
#include "cpu/kernels/gradient_tile.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

constexpr int vectors = max_vectors;
constexpr int panel = vectors * width;
constexpr int panels = lane_rows / panel;

Range block_of(std::int64_t block, std::int64_t rows) {
  return {block * lane_rows, smaller(rows, (block + 1) * lane_rows)};
}
Range part_of(Range block, int n) {
  return {block.begin + n * panel, smaller(block.end, block.begin + (n + 1) * panel)};
}
// Computes in f32 for every dtype.
template <class Body>
void with_float(DType dtype, Body body) {
  if (dtype == DType::f32) return body.template operator()<F32Gemm<vectors, Summation::blocked>>();
  body.template operator()<F32Gemm<vectors, Summation::whole>>();
}
std::int64_t bh_of(const Head& head) { return head.b * head.problem.heads + head.h; }

// Copies a tile into the score matrix, up to the last key.
void put_tile(float* matrix, std::int64_t stride, Panel<float> tile, Range queries, Range keys) {
  for (std::int64_t r = 0; r < queries.size(); ++r) {
    __builtin_memcpy(matrix + (queries.begin + r) * stride + keys.begin, tile.at(r, 0).data,
                     sizeof(float) * static_cast<std::size_t>(keys.size()));
  }
}

// to[n][column] = factor * sum over k of a(n, k) * power * rows[k][column], for the `to.count` rows
// of a block. `rows_at` returns the streamed rows, summed over `heads` heads. `power` is a power of
// two.
template <class RowsAt, class WeightsAt>
void multiply_rows(const RowBlock& to, std::int64_t heads, std::int64_t k, RowsAt rows_at,
                   WeightsAt weights_at, float power, double factor, float* memory) {
  const int columns = to.rows.columns;
  const std::int64_t stride = padded(columns);
  Scratch scratch(memory);
  float* rows = scratch.take(stream_rows * stride);
  float* sum = scratch.take(lane_rows * stride);
  __builtin_memset(sum, 0, sizeof(float) * static_cast<std::size_t>(lane_rows * stride));
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < k; i += stream_rows) {
      const Range here{i, smaller(k, i + stream_rows)};
      const RowBlock block = rows_at(h, here);
      const bool finite = load_rows(rows, stride, block, power);
      if (!finite) clear_nonfinite(rows, block.count * stride);
      over_columns(columns, [&]<int wide>(int at) {
        const auto multiply = to.rows.dtype == DType::f32
                                  ? gemm<wide, Into::add, Summation::blocked>
                                  : gemm<wide, Into::add, Summation::whole>;
        multiply(to.count, here.size(), weights_at(h, here),
                 Panel<const float>{rows, stride}.at(0, at), Panel<float>{sum, stride}.at(0, at));
      });
      if (!finite) add_nonfinite_rows(to.count, weights_at(h, here), block, rows, {sum, stride});
    }
  }
  for (int n = 0; n < to.count; ++n) {
    for (std::int64_t c = 0; c < stride; c += width)
      store(sum + n * stride + c, load(sum + n * stride + c) * static_cast<float>(factor));
    store_row(to.row(n), to.rows.dtype, sum + n * stride, columns);
  }
}

}  // namespace

void standard_scores(const Problem& p, const Scores& s, WorkItem item, float* memory) {
  const Head head(p, item.batch, item.head);
  const Range block = block_of(item.block, head.sequence.sk);
  with_float(p.dtype, [&]<class Gemm>() {
    Scratch scratch(memory);
    Gemm gemm_ops(scratch, p.head_dim);
    typename Gemm::Rows q(scratch, p.head_dim);
    typename Gemm::LaneOperand k[panels];
    float* scores = scratch.take(panel * stream_rows);
    float* bias = scratch.take(panel * stream_rows);
    const auto parts = static_cast<int>(blocks_of(block.size(), panel));
    for (int n = 0; n < parts; ++n) {
      k[n] = typename Gemm::LaneOperand(scratch, p.head_dim);
      k[n].load(head.keys(part_of(block, n)), head.scale.lanes);
    }
    for (std::int64_t i = 0; i < head.sequence.sq; i += stream_rows) {
      const Range queries{i, smaller(head.sequence.sq, i + stream_rows)};
      q.load(head.queries_of(p.q, queries), head.scale.rows);
      for (int n = 0; n < parts; ++n) {
        const Tile tile{queries, part_of(block, n)};
        gemm_ops.score(q, queries.size(), k[n], {scores, panel});
        finish_scores<Lanes::keys, vectors>(head, tile, scores, bias, nullptr);
        put_tile(s.data + s.offset(bh_of(head), 0), s.keys, {scores, panel}, tile.queries,
                 tile.keys);
      }
    }
  });
}

void standard_softmax(const Problem& p, const ForwardOutputs& o, const Scores& s, WorkItem item,
                      float* keep) {
  const Head head(p, item.batch, item.head);
  const Range block = block_of(item.block, head.sequence.sq);
  const std::int64_t keys = head.sequence.sk, whole = keys / width * width;
  const Exponential exponential(head.exponent);
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    float* row = s.data + s.offset(bh_of(head), i);
    float highest = head.sink;
    Float tops = splat(-infinity);
    for (std::int64_t j = 0; j < whole; j += width) tops = larger(load(row + j), tops);
    for (int n = 0; n < width; ++n) highest = tops[n] > highest ? tops[n] : highest;
    for (std::int64_t j = whole; j < keys; ++j) highest = row[j] > highest ? row[j] : highest;
    // An infinite score makes all weights NaN.
    const float base = highest == -infinity ? 0.0f : highest + (highest - highest);

    // The tail uses the same exponential, in its own vector.
    Float total{}, tail = splat(-infinity);
    // A masked key has weight 0, whatever the sum of the row.
    const auto weight_of = [&](Float score) {
      return select(score == -infinity, Float{}, exponential(score - base));
    };
    for (std::int64_t j = 0; j < whole; j += width) {
      const Float weight = weight_of(load(row + j));
      total += weight;
      store(row + j, weight);
    }
    for (std::int64_t j = whole; j < keys; ++j) tail[j - whole] = row[j];
    tail = weight_of(tail);
    for (std::int64_t j = whole; j < keys; ++j) row[j] = tail[j - whole];
    total += tail;
    float sum = head.sink == -infinity ? 0.0f : exponential(head.sink - base);
    for (int n = 0; n < width; ++n) sum += total[n];

    const float over = sum == 0 ? 0.0f : 1.0f / sum;
    for (std::int64_t j = 0; j < keys; ++j) row[j] = row[j] == 0 ? 0.0f : row[j] * over;
    if (o.lse) o.lse.at(head.b, head.h, head.sequence.q_row + i) = head.lse(highest, sum);
    for (std::int64_t j = 0; j < keys; j += panel) {
      const Tile tile{{i, i + 1}, {j, smaller(keys, j + panel)}};
      if (p.dropout.on()) dropout_mask<Lanes::keys, vectors>(head, tile, keep);
      for (std::int64_t n = 0; n < tile.keys.size(); ++n) {
        float& weight = row[j + n];
        const bool kept = !p.dropout.on() || keep[n] != 0;
        if (o.s_dmask) {
          store_double(o.s_dmask.row(head.b, head.h, i), o.s_dmask.dtype,
                       (j + n) * o.s_dmask.key_stride,
                       static_cast<double>(kept ? weight : -weight));
        }
        // A NaN row stays NaN, even if dropout drops all of it.
        if (!kept && sum == sum) weight = 0;
      }
    }
  }
}

void standard_output(const Problem& p, const ForwardOutputs& o, const Scores& s, WorkItem item,
                     float* memory) {
  const Head head(p, item.batch, item.head);
  const Range block = block_of(item.block, head.sequence.sq);
  multiply_rows(
      head.queries_of(o.out, block), 1, head.sequence.sk,
      [&](std::int64_t, Range keys) { return head.values(keys); },
      [&](std::int64_t, Range keys) {
        return Strided{s.data + s.offset(bh_of(head), block.begin) + keys.begin, s.keys, 1};
      },
      1.0f, static_cast<double>(p.dropout.scale() + head.sink_nan()), memory);
}

void standard_statistics(const Problem& p, const BackwardTensors& t, const Delta& to, WorkItem item,
                         float* memory) {
  const Head head(p, item.batch, item.head);
  const Range block = block_of(item.block, head.sequence.sq);
  find_statistics(head, t, to, block, lane_rows, memory,
                  [&](Range, auto body) { with_float(p.dtype, body); });
}

void standard_weights(const Problem& p, const BackwardTensors& t, const Delta& delta,
                      const Scores& s, WorkItem item, float* memory) {
  const Head head(p, item.batch, item.head);
  const Range block = block_of(item.block, head.sequence.sk);
  with_float(p.dtype, [&]<class Gemm>() {
    const auto parts = static_cast<int>(blocks_of(block.size(), panel));
    GradientTile<Gemm> pass(p, parts, memory);
    for (int n = 0; n < parts; ++n) pass.load_keys(head, n, part_of(block, n));
    const std::int64_t matrix = s.offset(bh_of(head), 0);
    for (std::int64_t i = 0; i < head.sequence.sq; i += stream_rows) {
      const Range queries{i, smaller(head.sequence.sq, i + stream_rows)};
      pass.load_queries(head, t, delta, queries);
      for (int n = 0; n < parts; ++n) {
        pass.score(n, queries.size());
        pass.differentiate(head, n, {queries, part_of(block, n)});
        put_tile(s.data + matrix, s.keys, {pass.weights, panel}, queries, part_of(block, n));
        put_tile(s.gradient + matrix, s.keys, pass.gradients.at(0, n * panel), queries,
                 part_of(block, n));
      }
    }
  });
}

void standard_query_gradients(const Problem& p, const BackwardTensors& t, const Scores& s,
                              WorkItem item, float* memory) {
  const Head head(p, item.batch, item.head);
  const Range block = block_of(item.block, head.sequence.sq);
  multiply_rows(
      head.queries_of(t.dq, block), 1, head.sequence.sk,
      [&](std::int64_t, Range keys) { return head.keys(keys); },
      [&](std::int64_t, Range keys) {
        return Strided{s.gradient + s.offset(bh_of(head), block.begin) + keys.begin, s.keys, 1};
      },
      head.scale.lanes, head.scale.of_lanes() * static_cast<double>(p.dropout.scale()), memory);
}

void standard_key_gradients(const Problem& p, const BackwardTensors& t, const Scores& s,
                            WorkItem item, float* memory) {
  const Head first(p, item.batch, item.head * p.gqa_group());
  const Range block = block_of(item.block, first.sequence.sk);
  // Row j of the gradient sums over queries, so the weights are read along a column.
  const auto run = [&](const Rows& gradient, const Rows& source, const float* matrix, float power,
                       double factor) {
    if (!gradient) return;
    multiply_rows(
        first.keys_of(gradient, block), p.gqa_group(), first.sequence.sq,
        [&](std::int64_t h, Range queries) {
          return Head(p, item.batch, first.h + h).queries_of(source, queries);
        },
        [&](std::int64_t h, Range queries) {
          return Strided{matrix + s.offset(bh_of(first) + h, queries.begin) + block.begin, 1,
                         s.keys};
        },
        power, factor, memory);
  };
  const auto dropout_scale = static_cast<double>(p.dropout.scale());
  run(t.dk, p.q, s.gradient, first.scale.rows, first.scale.of_rows() * dropout_scale);
  run(t.dv, t.dout, s.data, 1.0f, dropout_scale);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
