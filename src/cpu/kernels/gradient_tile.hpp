// A tile of the score matrix and its gradient, recomputed from q, k, v, dout and lse.
//
// Keys are in lanes and queries stream past, so that dk and dv of the lanes' keys accumulate in
// place.
#pragma once

#include ROCFLASH_GEMM
#include "core/lse.hpp"
#include "cpu/kernels.hpp"
#include "cpu/kernels/score.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

template <class Gemm_>
struct GradientTile {
  using Gemm = Gemm_;
  static constexpr int vectors = Gemm::vectors, panel = Gemm::panel;
  static constexpr int max_panels = larger(1, max_gradient_block / panel);

  const Problem& p;
  int d, dv;
  Scratch scratch;
  Gemm gemm_ops;
  typename Gemm::RowsAndValues q, dout;
  typename Gemm::LaneOperand k[max_panels], v[max_panels];
  float *lse, *log_sum;         // [query]: weights are exp(score - lse - log_sum)
  float *delta, *mean;          // [query]
  float* lse_gradient;          // [query]: contained in delta
  float* weights;               // [query][lane]: result of `differentiate`
  Panel<float> gradients;       // likewise, for all panels
  float *bias, *keep, *slopes;  // [query][lane]
  bool of_scores = false;       // whether `score_gradients` is required

  // For keys in this many panels.
  ROCFLASH_INLINE GradientTile(const Problem& problem, int panels, float* memory)
      : p(problem),
        d(p.head_dim),
        dv(p.value_dim),
        scratch(memory),
        gemm_ops(scratch, static_cast<int>(larger(d, dv))),
        q(scratch, d),
        dout(scratch, dv) {
    for (int n = 0; n < panels; ++n) {
      k[n] = typename Gemm::LaneOperand(scratch, d);
      v[n] = typename Gemm::LaneOperand(scratch, dv);
    }
    lse = scratch.take(stream_rows);
    log_sum = scratch.take(stream_rows);
    delta = scratch.take(stream_rows);
    mean = scratch.take(stream_rows);
    lse_gradient = scratch.take(stream_rows);
    weights = scratch.take(panel * stream_rows);
    gradients = {scratch.take(panels * panel * stream_rows), panels * panel};
    bias = scratch.take(panel * stream_rows);
    keep = scratch.take(panel * stream_rows);
    slopes = scratch.take(panel * stream_rows);
  }

  ROCFLASH_INLINE void load_keys(const Head& head, int n, Range keys) {
    k[n].load(head.keys(keys), head.scale.lanes);
    v[n].load(head.values(keys));
  }

  ROCFLASH_INLINE void load_queries(const Head& head, const BackwardTensors& t, const Delta& deltas,
                                    Range queries) {
    q.load(head.queries_of(p.q, queries), head.scale.rows);
    dout.load(head.queries_of(t.dout, queries));
    const std::int64_t row = head.sequence.q_row + queries.begin;
    const std::ptrdiff_t first = deltas.rows(head.b, head.h, row) - deltas.data;
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      lse[i] = deltas.base[first + i];
      log_sum[i] = deltas.log_sum[first + i];
      delta[i] = deltas.data[first + i];
      lse_gradient[i] = deltas.lse_gradient(p, t, head.b, head.h, row + i);
    }
  }

  // Updates the online softmax of the `wanted` rows with the scores of panel n: running max and sum
  // of weights. The scores have the same bits as in `differentiate`.
  ROCFLASH_INLINE void add_to_sums(const Head& head, int n, const Tile& tile, const bool* wanted,
                                   float* highest, double* sum) {
    const std::int64_t rows = tile.queries.size();
    gemm_ops.score(q, rows, k[n], {weights, panel});
    begin_panel(head, n, tile);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (!wanted[r]) continue;
      for (int lane = 0; lane < panel; ++lane) {
        const float score = weights[r * panel + lane] * static_cast<float>(head.score_scale);
        if (score == -infinity) continue;
        const double above = static_cast<double>(score) - static_cast<double>(highest[r]);
        if (above > 0) {
          sum[r] = sum[r] * __builtin_exp(-above) + 1;
          highest[r] = score;
        } else {
          sum[r] += __builtin_exp(above);
        }
      }
    }
  }

  // The GEMMs of panel n: scores, and gradients of the weights.
  ROCFLASH_INLINE void score(int n, std::int64_t rows) {
    gemm_ops.score(q, rows, k[n], {weights, panel});
    gemm_ops.score(dout, rows, v[n], gradients.at(0, n * panel));
  }

  // Computes the weights after dropout and d(loss) / d(scale * q.k) in panel n of the gradients,
  // both without the dropout scale, and the rows' shares of rowsum(dO * O) in `mean`.
  ROCFLASH_INLINE void differentiate(const Head& head, int n, const Tile& tile) {
    const std::int64_t rows = tile.queries.size();
    begin_panel(head, n, tile);
    if (p.dropout.on()) dropout_mask<Lanes::keys, vectors>(head, tile, keep);
    for (std::int64_t r = 0; r < rows; ++r) {
      const Range visible_range = head.visible(tile.queries.begin + r);
      const bool all_keys =
          tile.keys.begin <= visible_range.begin && visible_range.end <= tile.keys.end;
      scores_to_weights(head, r);
      // lse and out are rounded. If these keys have all the weight, their own sums are more
      // accurate, and a query that attends to one key gets a gradient of exactly 0.
      const bool alone = all_keys && normalize_row(head, r);
      if (alone || p.sinks) mean[r] = mean_of_row(r);
      if (alone) delta[r] = mean[r] - lse_gradient[r];
      differentiate_row(r);
    }
  }

  // After `differentiate`: gradients of the scores as the softmax reads them, after softcap.
  ROCFLASH_INLINE Panel<const float> score_gradients() const {
    if (p.softcap > 0) return {bias, panel};
    return {here_.data, here_.stride};
  }

  // The packed path: one pass that leaves only the packed pairs of weights and gradients for the
  // next GEMMs. The choice must not depend on tensor values, or masked elements could change the
  // last bits of a result.
  ROCFLASH_INLINE bool can_pack(const Head& head, Range block) const {
    return Gemm::packs && block.size() < head.sequence.sk && !p.sinks && !p.dropout.on() &&
           p.softcap <= 0 && !of_scores;
  }
  // Whether all inputs of the gradients are finite. If not, `differentiate_packed` also stores them
  // as floats.
  ROCFLASH_INLINE bool is_finite([[maybe_unused]] int panels,
                                 [[maybe_unused]] std::int64_t rows) const {
    if constexpr (Gemm::packs) {
      if (!q.Values::finite || !dout.Values::finite) return false;
      for (int n = 0; n < panels; ++n)
        if (!v[n].finite || !k[n].finite) return false;
      float taint = 0;
      for (std::int64_t r = 0; r < rows; ++r) taint += delta[r] * 0.0f;
      return taint == 0.0f;
    }
    return true;
  }
  static constexpr int weights_at = 0, gradients_at = stream_rows;  // offsets in the packed rows
  ROCFLASH_INLINE void differentiate_packed(const Head& head, int n, const Tile& tile,
                                            bool finite) {
    const std::int64_t rows = tile.queries.size();
    begin_panel(head, n, tile);
    for (std::int64_t r = 0; r < rows; r += 2) {
      Float weight[2][vectors] = {}, gradient[2][vectors] = {};
      for (int i = 0; i < 2 && r + i < rows; ++i) {
        for (int m = 0; m < vectors; ++m) {
          weight[i][m] = weight_at(head, r + i, m * width);
          gradient[i][m] = gradient_at(weight[i][m], r + i, m * width);
          if (finite) continue;
          store(here_.at(r + i, m * width).data, gradient[i][m]);
          gradient[i][m] = gemm_ops.finite_part(gradient[i][m], false);
        }
        for (int m = 0; m < vectors; m += 2)
          gemm_ops.pack_lanes(r + i, (n * vectors + m) * width, gradient[i][m],
                              m + 1 < vectors ? gradient[i][m + 1] : Float{});
      }
      for (int m = 0; m < vectors; ++m) {
        gemm_ops.pack(weights_at + r, m * width, weight[0][m], weight[1][m]);
        gemm_ops.pack(gradients_at + r, m * width, gradient[0][m], gradient[1][m]);
      }
    }
  }

 private:
  // exp(score - lse). Scores are rounded to the scale of lse first: a key with all the weight then
  // gets exactly 1, because forward rounded its score the same way into the lse.
  ROCFLASH_INLINE Float weight_of(const Head& head, Float score, std::int64_t r) const {
    constexpr float overflow = 88.0f;  // only reached with a wrong lse from the caller
    const Float difference = score * static_cast<float>(head.score_scale) - lse[r] - log_sum[r];
    return typename Gemm::Exponent(log2_e)(difference > overflow ? splat(overflow) : difference);
  }
  ROCFLASH_INLINE void begin_panel(const Head& head, int n, const Tile& tile) {
    here_ = gradients.at(0, n * panel);
    finish_scores<Lanes::keys, vectors>(head, tile, weights, bias,
                                        p.softcap > 0 ? slopes : nullptr);
    const auto keys = static_cast<std::int32_t>(tile.keys.size());
    if (keys == panel) return;
    for (std::int64_t r = 0; r < tile.queries.size(); ++r)
      for (int m = 0; m < panel; m += width)
        blend_lanes(weights + r * panel + m, lane_index() + m < keys, -infinity);
  }
  // A masked key has no weight, whatever the row's statistics.
  ROCFLASH_INLINE Float weight_at(const Head& head, std::int64_t r, int lane) const {
    const Float score = load(weights + r * panel + lane);
    return select(score == -infinity, Float{}, weight_of(head, score, r));
  }
  ROCFLASH_INLINE Float gradient_at(Float weight, std::int64_t r, int lane) const {
    return select(weight == 0.0f, Float{}, weight * (load(here_.at(r, lane).data) - delta[r]));
  }
  // Converts scores to weights; gradients of dropped weights become 0.
  ROCFLASH_INLINE void scores_to_weights(const Head& head, std::int64_t r) {
    for (int m = 0; m < panel; m += width) {
      store(weights + r * panel + m, weight_at(head, r, m));
      if (p.dropout.on())
        blend_lanes(here_.at(r, m).data, load(keep + r * panel + m) != 0.0f, 0.0f);
    }
  }
  // Normalizes the row's weights and the sink's to a sum of 1, unless keys of other tiles have
  // weight.
  ROCFLASH_INLINE bool normalize_row(const Head& head, std::int64_t r) {
    constexpr float rounding = 1e-5f;
    Float total{};
    for (std::int64_t at = r * panel; at < (r + 1) * panel; at += width)
      total += load(weights + at);
    float sum = sum_of(total);
    if (head.sink != -infinity) sum += weight_of(head, splat(head.sink), r)[0];
    if (!(sum > 1.0f - rounding && sum < 1.0f + rounding)) return false;
    for (std::int64_t at = r * panel; at < (r + 1) * panel; at += width)
      store(weights + at, load(weights + at) / sum);
    return true;
  }
  ROCFLASH_INLINE float mean_of_row(std::int64_t r) const {
    Float product{};
    for (int m = 0; m < panel; m += width) {
      const Float weight = load(weights + r * panel + m);
      product += select(weight == 0.0f, Float{}, weight * load(here_.at(r, m).data));
    }
    return sum_of(product);
  }
  ROCFLASH_INLINE void differentiate_row(std::int64_t r) {
    for (int m = 0; m < panel; m += width) {
      const std::int64_t at = r * panel + m;
      float* to = here_.at(r, m).data;
      const Float weight = load(weights + at);
      Float gradient = gradient_at(weight, r, m);
      // The bias has been added already: reuse its buffer.
      if (p.softcap > 0 && of_scores) store(bias + at, gradient);
      // The slope of a masked score is undefined.
      if (p.softcap > 0)
        gradient = select(gradient == 0.0f, gradient, gradient * load(slopes + at));
      store(to, gradient);
      if (p.dropout.on()) blend_lanes(weights + at, load(keep + at) != 0.0f, 0.0f);
    }
  }

  Panel<float> here_{};  // gradients of the current panel
};

// base and log_sum of a block of queries. An lse that f32 resolves suffices. Otherwise the softmax
// denominator is summed again over the key blocks for which `with_block` calls body<Gemm>, with the
// GEMM of the gradients: large scores must have the same bits. A call that has only some of the
// row's keys keeps the lse.
template <class WithBlock>
ROCFLASH_INLINE void find_statistics(const Head& head, const BackwardTensors& t, const Delta& to,
                                     Range block, std::int64_t key_block, float* memory,
                                     WithBlock with_block) {
  const Problem& p = head.problem;
  const std::int64_t row = head.sequence.q_row;
  const std::ptrdiff_t first = to.rows(head.b, head.h, row) - to.data;
  for (std::int64_t i = block.begin; i < block.end; i += stream_rows) {
    const Range queries{i, smaller(block.end, i + stream_rows)};
    bool wanted[stream_rows] = {}, some = false;
    float highest[stream_rows];
    double sum[stream_rows];
    for (std::int64_t r = 0; r < queries.size(); ++r) {
      const float lse = t.lse.at(head.b, head.h, row + i + r);
      to.base[first + i + r] = lse;
      to.log_sum[first + i + r] = 0;
      const float size = __builtin_fabsf(lse);
      wanted[r] = size >= unresolved_lse && size < infinity;
      some |= wanted[r];
      // Finite, so that score differences are never NaN.
      highest[r] = head.sink == -infinity ? -0x1.fffffep127f : head.sink;
      sum[r] = head.sink == -infinity ? 0 : 1;
    }
    if (!some) continue;
    const Range visible_range =
        visible_keys(p.visibility, queries, head.sequence.sq, head.sequence.sk);
    for (std::int64_t j = floor_to(visible_range.begin, key_block); j < visible_range.end;
         j += key_block) {
      const Range keys{j, smaller(head.sequence.sk, j + key_block)};
      with_block(keys, [&]<class Gemm>() {
        constexpr int panel = Gemm::panel;
        const auto panels = static_cast<int>(blocks_of(keys.size(), panel));
        GradientTile<Gemm> tile(p, panels, memory);
        tile.load_queries(head, t, to, queries);
        for (int n = 0; n < panels; ++n) {
          const Range lanes{j + n * panel, smaller(keys.end, j + (n + 1) * panel)};
          tile.load_keys(head, n, lanes);
          tile.add_to_sums(head, n, {queries, lanes}, wanted, highest, sum);
        }
      });
    }
    for (std::int64_t r = 0; r < queries.size(); ++r) {
      if (!wanted[r] || sum[r] == 0) continue;
      const auto of_scores = static_cast<float>(highest[r] + __builtin_log(sum[r]));
      if (!covers_lse(of_scores, to.base[first + i + r])) continue;
      to.base[first + i + r] = highest[r];
      to.log_sum[first + i + r] = static_cast<float>(__builtin_log(sum[r]));
    }
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
