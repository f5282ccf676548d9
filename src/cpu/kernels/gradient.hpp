// A tile of the score matrix and its gradient, recomputed from q, k, v, dout and lse: the heart of
// every backward pass.
//
// Keys are in lanes and queries stream past: dk and dv of the lanes' keys are then sums that stay
// in place.
#pragma once

#include ROCFLASH_PRODUCTS
#include "cpu/kernels.hpp"
#include "cpu/kernels/score.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

template <class Products_>
struct GradientTile {
  using Products = Products_;
  static constexpr int vectors = Products::vectors, panel = Products::panel;
  static constexpr int most_panels = larger(1, most_gradient_block / panel);

  const Problem& p;
  int d, dv;
  Scratch scratch;
  Products products;
  typename Products::RowsAndValues q, dout;
  typename Products::InLanes k[most_panels], v[most_panels];
  float* lse;                   // [query]
  float *delta, *mean;          // [query]
  float* weights;               // [query][lane]: what `differentiate` leaves behind
  Panel<float> gradients;       // likewise, for all panels side by side
  float *bias, *keep, *slopes;  // [query][lane]
  bool of_scores = false;       // whether `score_gradients` is wanted

  // For keys in so many panels.
  ROCFLASH_INLINE GradientTile(const Problem& problem, int panels, float* memory)
      : p(problem),
        d(p.head_dim),
        dv(p.value_dim),
        scratch(memory),
        products(scratch, static_cast<int>(larger(d, dv))),
        q(scratch, d),
        dout(scratch, dv) {
    for (int n = 0; n < panels; ++n) {
      k[n] = typename Products::InLanes(scratch, d);
      v[n] = typename Products::InLanes(scratch, dv);
    }
    lse = scratch.take(stream_rows);
    delta = scratch.take(stream_rows);
    mean = scratch.take(stream_rows);
    weights = scratch.take(panel * stream_rows);
    gradients = {scratch.take(panels * panel * stream_rows), panels * panel};
    bias = scratch.take(panel * stream_rows);
    keep = scratch.take(panel * stream_rows);
    slopes = scratch.take(panel * stream_rows);
  }

  ROCFLASH_INLINE void load_keys(const Head& head, int n, Range keys) {
    k[n].load(head.keys_of(p.k, keys), head.scale.lanes);
    v[n].load(head.keys_of(p.v, keys));
  }

  ROCFLASH_INLINE void load_queries(const Head& head, const BackwardTensors& t, const Delta& deltas,
                                    Range queries) {
    q.load(head.queries_of(p.q, queries), head.scale.rows);
    dout.load(head.queries_of(t.dout, queries));
    const std::int64_t row = head.sequence.q_row + queries.begin;
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      lse[i] = t.lse.at(head.b, head.h, row + i);
      delta[i] = deltas.rows(head.b, head.h, row)[i];
    }
  }

  // The products behind panel n: scores, and gradients of the weights.
  ROCFLASH_INLINE void score(int n, std::int64_t rows) {
    products.score(q, rows, k[n], {weights, panel});
    products.score(dout, rows, v[n], gradients.at(0, n * panel));
  }

  // Then leaves the weights after dropout, and d(loss) / d(scale * q.k) in panel n of the
  // gradients, both without dropout's scale, and in `mean` the rows' shares of delta.
  ROCFLASH_INLINE void differentiate(const Head& head, int n, const Tile& tile) {
    const std::int64_t rows = tile.queries.size();
    begin_panel(head, n, tile);
    if (p.dropout.on()) draw_dropout<Lanes::keys, vectors>(head, tile, keep);
    for (std::int64_t r = 0; r < rows; ++r) {
      const Range seen = head.visible(tile.queries.begin + r);
      const bool all_keys = tile.keys.begin <= seen.begin && seen.end <= tile.keys.end;
      weigh_row(head, r);
      // Lse and out have been rounded. Where these keys have all the weight, their own sums are the
      // better word for both, and a query that sees one key gets a gradient of exactly 0.
      const bool alone = all_keys && normalise_row(head, r);
      if (alone || p.sinks) mean[r] = mean_of_row(r);
      if (alone) delta[r] = mean[r];
      differentiate_row(r);
    }
  }

  // After `differentiate`: gradients of the scores as softmax saw them, behind the softcap.
  ROCFLASH_INLINE Panel<const float> score_gradients() const {
    if (p.softcap > 0) return {bias, panel};
    return {here_.data, here_.stride};
  }

  // The simple case, in which all is done in one go and leaves only what the next products take:
  // pairs of weights and of gradients. What is in the tensors must not matter for this choice, or
  // numbers that a query does not see would change its last bits.
  ROCFLASH_INLINE bool is_simple(const Head& head, Range block) const {
    return Products::packs && block.size() < head.sequence.sk && !p.sinks && !p.dropout.on() &&
           p.softcap <= 0 && !of_scores;
  }
  // Whether all that gradients are made of is finite. If it is not, `differentiate_plain` leaves
  // them behind as floats too.
  ROCFLASH_INLINE bool is_finite([[maybe_unused]] int panels,
                                 [[maybe_unused]] std::int64_t rows) const {
    if constexpr (Products::packs) {
      if (!q.Values::finite || !dout.Values::finite) return false;
      for (int n = 0; n < panels; ++n)
        if (!v[n].finite || !k[n].finite) return false;
      float taint = 0;
      for (std::int64_t r = 0; r < rows; ++r) taint += delta[r] * 0.0f;
      return taint == 0.0f;
    }
    return true;
  }
  static constexpr int weights_at = 0, gradients_at = stream_rows;  // among packed rows
  ROCFLASH_INLINE void differentiate_plain(const Head& head, int n, const Tile& tile, bool finite) {
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
          gradient[i][m] = products.splittable(gradient[i][m], false);
        }
        for (int m = 0; m < vectors; m += 2)
          products.pack_lanes(r + i, (n * vectors + m) * width, gradient[i][m],
                              m + 1 < vectors ? gradient[i][m + 1] : Float{});
      }
      for (int m = 0; m < vectors; ++m) {
        products.pack(weights_at + r, m * width, weight[0][m], weight[1][m]);
        products.pack(gradients_at + r, m * width, gradient[0][m], gradient[1][m]);
      }
    }
  }

 private:
  // exp(score - lse). Scores are rounded in lse's unit first: a key that has all the weight then
  // gets exactly 1, because forward rounded its score in the same way to be the lse.
  ROCFLASH_INLINE static Float weight_of(const Head& head, Float score, float lse_here) {
    constexpr float overflow = 88.0f;  // only a caller's wrong lse leads there
    const Float difference = score * static_cast<float>(head.unit) - lse_here;
    return
        typename Products::Exponent(log2_e)(difference > overflow ? splat(overflow) : difference);
  }
  ROCFLASH_INLINE void begin_panel(const Head& head, int n, const Tile& tile) {
    here_ = gradients.at(0, n * panel);
    finish_scores<Lanes::keys, vectors>(head, tile, weights, bias,
                                        p.softcap > 0 ? slopes : nullptr);
    const auto keys = static_cast<std::int32_t>(tile.keys.size());
    if (keys == panel) return;
    for (std::int64_t r = 0; r < tile.queries.size(); ++r)
      for (int m = 0; m < panel; m += width)
        keep_lanes(weights + r * panel + m, lane_index() + m < keys, -infinity);
  }
  // A hidden key has no weight, whatever the row's statistics have become.
  ROCFLASH_INLINE Float weight_at(const Head& head, std::int64_t r, int lane) const {
    const Float score = load(weights + r * panel + lane);
    return select(score == -infinity, Float{}, weight_of(head, score, lse[r]));
  }
  ROCFLASH_INLINE Float gradient_at(Float weight, std::int64_t r, int lane) const {
    return select(weight == 0.0f, Float{}, weight * (load(here_.at(r, lane).data) - delta[r]));
  }
  // Scores become weights; gradients of weights that dropout took become 0.
  ROCFLASH_INLINE void weigh_row(const Head& head, std::int64_t r) {
    for (int m = 0; m < panel; m += width) {
      store(weights + r * panel + m, weight_at(head, r, m));
      if (p.dropout.on()) keep_lanes(here_.at(r, m).data, load(keep + r * panel + m) != 0.0f, 0.0f);
    }
  }
  // Makes the row's weights and the sink's add up to 1, unless other keys, which are not here, have
  // a share.
  ROCFLASH_INLINE bool normalise_row(const Head& head, std::int64_t r) {
    constexpr float rounding = 1e-5f;
    Float total{};
    for (std::int64_t at = r * panel; at < (r + 1) * panel; at += width)
      total += load(weights + at);
    float sum = sum_of(total);
    if (head.sink != -infinity) sum += weight_of(head, splat(head.sink), lse[r])[0];
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
      // The bias has been added by now: its place is free.
      if (p.softcap > 0 && of_scores) store(bias + at, gradient);
      // The slope of a hidden score may be anything.
      if (p.softcap > 0)
        gradient = select(gradient == 0.0f, gradient, gradient * load(slopes + at));
      store(to, gradient);
      if (p.dropout.on()) keep_lanes(weights + at, load(keep + at) != 0.0f, 0.0f);
    }
  }

  Panel<float> here_{};  // the gradients of the panel at hand
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
