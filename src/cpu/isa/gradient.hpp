// A tile of the score matrix and its gradient, recomputed from q, k, v, dout and lse: the heart of
// every backward pass.
//
// Keys are in lanes and queries stream past: dk and dv of the lanes' keys are then sums that stay
// in place.
#pragma once

#include "cpu/isa/gemm.hpp"
#include "cpu/isa/score.hpp"
#include "cpu/kernels.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

template <int vectors>
struct GradientTile {
  static constexpr int panel = vectors * width;
  static constexpr int panels = lane_rows / panel;

  const Problem& p;
  int d, dv;
  Scratch scratch;
  float *k, *v;           // [panel][column][lane]
  float *q, *dout;        // [query][column]
  float *lse, *lse_rest;  // [query]: lse as a logarithm of base 2, and what its rounding left over
  float* delta;           // [query]
  float *weights, *gradients;   // [query][lane]: what `compute` leaves behind
  float *bias, *keep, *slopes;  // likewise
  bool q_finite = true, dout_finite = true;

  ROCFLASH_INLINE GradientTile(const Problem& problem, float* memory)
      : p(problem), d(p.head_dim), dv(p.value_dim), scratch(memory) {
    k = scratch.take(std::int64_t{lane_rows} * d);
    v = scratch.take(std::int64_t{lane_rows} * dv);
    q = scratch.take(stream_rows * padded(d));
    dout = scratch.take(stream_rows * padded(dv));
    lse = scratch.take(stream_rows);
    lse_rest = scratch.take(stream_rows);
    delta = scratch.take(stream_rows);
    weights = scratch.take(panel * stream_rows);
    gradients = scratch.take(panel * stream_rows);
    bias = scratch.take(panel * stream_rows);
    keep = scratch.take(panel * stream_rows);
    slopes = scratch.take(panel * stream_rows);
  }

  ROCFLASH_INLINE void load_keys(const Head& head, int n, Range keys) {
    load_lanes(k + std::int64_t{n} * d * panel, panel, head.keys_of(p.k, keys));
    load_lanes(v + std::int64_t{n} * dv * panel, panel, head.keys_of(p.v, keys));
  }

  ROCFLASH_INLINE void load_queries(const Head& head, const BackwardTensors& t, const Delta& deltas,
                                    Range queries) {
    q_finite = load_rows(q, padded(d), head.queries_of(p.q, queries));
    dout_finite = load_rows(dout, padded(dv), head.queries_of(t.dout, queries));
    const std::int64_t row = head.sequence.q_row + queries.begin;
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      // An lse of 100 rounded once more would cost a weight six of its 24 bits.
      const double exact = static_cast<double>(t.lse.at(head.b, head.h, row + i)) / head.natural;
      lse[i] = static_cast<float>(exact);
      lse_rest[i] =
          lse[i] == infinity ? 0.0f : static_cast<float>(exact - static_cast<double>(lse[i]));
      delta[i] = deltas.rows(head.b, head.h, row)[i];
    }
  }

  // Leaves the weights after dropout (but without its scale), and d(loss) / d(scale * q.k).
  ROCFLASH_INLINE void compute(const Head& head, int n, const Tile& tile) {
    const std::int64_t rows = tile.queries.size();
    gemm<vectors, Into::overwrite>(rows, d, {q, padded(d), 1},
                                   {k + std::int64_t{n} * d * panel, panel}, {weights, panel},
                                   nullptr);
    gemm<vectors, Into::overwrite>(rows, dv, {dout, padded(dv), 1},
                                   {v + std::int64_t{n} * dv * panel, panel}, {gradients, panel},
                                   nullptr);
    finish_scores<Lanes::keys, vectors>(head, tile, weights, bias,
                                        p.softcap > 0 ? slopes : nullptr);
    if (p.dropout.on()) draw_dropout<Lanes::keys, vectors>(head, tile, keep);
    differentiate(head, rows);
  }

 private:
  ROCFLASH_INLINE void differentiate(const Head& head, std::int64_t rows) {
    const float dropout_scale = p.dropout.scale();
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t at = r * panel; at < (r + 1) * panel; at += width) {
        const Float score = load(weights + at);
        // A hidden key has no weight, whatever the row's statistics have become.
        const Float weight = select(score == -infinity, Float{},
                                    exp2_of_difference(score, head.exponent, lse[r], lse_rest[r]));
        Float kept = weight, gradient = load(gradients + at);
        if (p.dropout.on()) {
          const Int kept_here = load(keep + at) != 0.0f;
          kept = select(kept_here, weight, Float{});
          gradient = select(kept_here, gradient * dropout_scale, Float{});
        }
        gradient = select(weight == 0.0f, Float{}, weight * (gradient - delta[r]));
        if (p.softcap > 0) gradient *= load(slopes + at);
        store(weights + at, kept);
        store(gradients + at, gradient);
      }
    }
  }
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
