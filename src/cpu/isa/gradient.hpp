// A tile of the score matrix and its gradient, recomputed from q, k, v, dout and lse: the heart of
// every backward pass.
#pragma once

#include "cpu/isa/gemm.hpp"
#include "cpu/isa/score.hpp"
#include "cpu/kernels.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Per query: lse as a logarithm of base 2, and delta. In lanes or streamed, by the pass.
struct QueryStatistics {
  float *lse, *delta;

  ROCFLASH_INLINE void load(const Head& head, const BackwardTensors& t, const Delta& d,
                            Range queries) const {
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      const std::int64_t row = head.sequence.q_row + queries.begin + i;
      lse[i] =
          static_cast<float>(static_cast<double>(t.lse.at(head.b, head.h, row)) / head.natural);
      delta[i] = *d.rows(head.b, head.h, row);
    }
  }
};

// Scores become weights (after dropout, without its scale) and gradients of weights become
// gradients of q.k * scale.
template <Lanes lanes, int vectors>
[[gnu::noinline]] static void differentiate(const Head& head, std::int64_t rows, float* scores,
                                            float* gradients, const QueryStatistics& statistics,
                                            const float* keep, const float* slopes) {
  constexpr int panel = vectors * width;
  const float dropout_scale = head.problem.dropout.scale();
  for (std::int64_t r = 0; r < rows; ++r) {
    for (int m = 0; m < vectors; ++m) {
      const std::int64_t at = r * panel + m * width;
      const Float lse =
          lanes == Lanes::queries ? load(statistics.lse + m * width) : splat(statistics.lse[r]);
      const Float mean =
          lanes == Lanes::queries ? load(statistics.delta + m * width) : splat(statistics.delta[r]);
      const Float score = load(scores + at);
      // A hidden key has no weight, whatever the row's statistics have become.
      const Float weight = select(score == -infinity, Float{}, exp2(score * head.exponent - lse));
      Float kept = weight, gradient = load(gradients + at);
      if (keep) {
        const Int kept_here = load(keep + at) != 0.0f;
        kept = select(kept_here, weight, Float{});
        gradient = select(kept_here, gradient * dropout_scale, Float{});
      }
      gradient = select(weight == 0.0f, Float{}, weight * (gradient - mean));
      if (slopes) gradient *= load(slopes + at);
      store(scores + at, kept);
      store(gradients + at, gradient);
    }
  }
}

// What both passes share: two operands in lanes, two streamed, and a tile of scores with its
// gradients.
template <Lanes lanes, int vectors>
struct Pass {
  static constexpr int panel = vectors * width;
  static constexpr int panels = lane_rows / panel;
  const Problem& p;
  const BackwardTensors& t;
  const Delta& delta;
  int d, dv;
  Scratch scratch;
  float *lane_d, *lane_dv;      // [panel][column][lane]: q and dout, or k and v
  float *stream_d, *stream_dv;  // [row][column]: k and v, or q and dout
  float *sum_d, *sum_dv;        // [panel][column][lane]: dq, or dk and dv
  float *scores, *gradients, *bias, *keep, *slopes;
  QueryStatistics statistics;  // in lanes (all panels), or streamed
  bool stream_d_finite = true, stream_dv_finite = true;

  ROCFLASH_INLINE Pass(const Problem& problem, const BackwardTensors& tensors,
                       const Delta& row_sums, float* memory)
      : p(problem), t(tensors), delta(row_sums), d(p.head_dim), dv(p.value_dim), scratch(memory) {
    lane_d = scratch.take(std::int64_t{lane_rows} * d);
    lane_dv = scratch.take(std::int64_t{lane_rows} * dv);
    stream_d = scratch.take(stream_rows * padded(d));
    stream_dv = scratch.take(stream_rows * padded(dv));
    sum_d = scratch.take(std::int64_t{lane_rows} * d);
    sum_dv = scratch.take(std::int64_t{lane_rows} * dv);
    scores = scratch.take(panel * stream_rows);
    gradients = scratch.take(panel * stream_rows);
    bias = scratch.take(panel * stream_rows);
    keep = scratch.take(panel * stream_rows);
    slopes = scratch.take(panel * stream_rows);
    statistics = {scratch.take(lane_rows), scratch.take(lane_rows)};
    __builtin_memset(sum_d, 0, sizeof(float) * lane_rows * static_cast<std::size_t>(d));
    __builtin_memset(sum_dv, 0, sizeof(float) * lane_rows * static_cast<std::size_t>(dv));
  }

  ROCFLASH_INLINE static Range part(Range block, int n) {
    return {block.begin + n * panel, smaller(block.end, block.begin + (n + 1) * panel)};
  }
  ROCFLASH_INLINE QueryStatistics statistics_of(int n) const {
    if (lanes == Lanes::keys) return statistics;
    return {statistics.lse + n * panel, statistics.delta + n * panel};
  }
  ROCFLASH_INLINE void stream(const RowBlock& of_d, const RowBlock& of_dv) {
    stream_d_finite = load_rows(stream_d, padded(d), of_d);
    stream_dv_finite = load_rows(stream_dv, padded(dv), of_dv);
  }

  // One tile of panel n: leaves weights in `scores` and gradients of scaled q.k in `gradients`.
  ROCFLASH_INLINE void tile(const Head& head, int n, const Tile& where) {
    const std::int64_t rows = streamed<lanes>(where).size();
    gemm<vectors, Into::overwrite>(rows, d, {stream_d, padded(d), 1},
                                   {lane_d + std::int64_t{n} * d * panel, panel}, {scores, panel},
                                   nullptr);
    gemm<vectors, Into::overwrite>(rows, dv, {stream_dv, padded(dv), 1},
                                   {lane_dv + std::int64_t{n} * dv * panel, panel},
                                   {gradients, panel}, nullptr);
    const bool capped = p.softcap > 0;
    finish_scores<lanes, vectors>(head, where, scores, bias, capped ? slopes : nullptr);
    if (p.dropout.on()) draw_dropout<lanes, vectors>(head, where, keep);
    differentiate<lanes, vectors>(head, rows, scores, gradients, statistics_of(n),
                                  p.dropout.on() ? keep : nullptr, capped ? slopes : nullptr);
  }

  // sum[column][lane] += streamed[row][column] * weights[row][lane]
  ROCFLASH_INLINE static void accumulate(float* sum, int columns, const float* stream, bool finite,
                                         std::int64_t rows, const float* weights) {
    const auto multiply =
        finite ? gemm<vectors, Into::add> : gemm_skipping_zeros<vectors, Into::add>;
    multiply(columns, rows, {stream, 1, padded(columns)}, {weights, panel}, {sum, panel}, nullptr);
  }

  ROCFLASH_INLINE static void store_scaled(const float* sum, int columns, int n, float factor,
                                           const RowBlock& to) {
    float factors[panel];
    for (float& f : factors) f = factor;
    store_lanes(sum + std::int64_t{n} * columns * panel, panel, factors, to);
  }
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
