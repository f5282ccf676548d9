// Forward: panels of queries stay in vector lanes while tiles of keys and values stream past. Only
// one tile of scores exists at a time.
#include "cpu/kernels/entries.hpp"
#include ROCFLASH_GEMM
#include "cpu/kernels/score.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

// Online softmax with one query per lane: a running max and the sum of weights relative to it. The
// running max is updated only if scores exceed it by the exponential's slack. Rounded weights up to
// 2^8 are as accurate as weights up to 1, so most tiles need no rescale of the output.
struct OnlineSoftmax {
  float *base, *sum, *factor;

  // A sink is the first weight: 1, or NaN for a sink of +infinity or NaN. Lanes past the last query
  // never change.
  template <int vectors>
  ROCFLASH_INLINE void start(const Head& head, std::int64_t queries) {
    for (int n = 0; n < vectors * width; ++n) {
      base[n] = n < queries ? head.sink : infinity;
      sum[n] = head.sink == -infinity ? 0.0f : 1.0f + head.sink_nan();
    }
  }

  // Converts a tile of scores to weights and passes them on in pairs of rows: emit(row, lane,
  // weights of the row, weights of the next row); a missing row has weights 0. Returns whether a
  // running max changed: earlier output must then be rescaled by `factor`.
  template <int vectors, class Exponent, class Emit>
  ROCFLASH_INLINE bool update(const float* scores, std::int64_t rows, const Exponent& exponential,
                              Emit emit) {
    constexpr int panel = vectors * width;
    const float reach = Exponent::slack / exponential.factor;
    Float top[vectors], total[vectors];
    for (int m = 0; m < vectors; ++m) top[m] = splat(-infinity);
    for (std::int64_t r = 0; r < rows; ++r)
      for (int m = 0; m < vectors; ++m)
        top[m] = larger(load(scores + r * panel + m * width), top[m]);
    bool rescaled = false;
    for (int m = 0; m < vectors; ++m) rescaled |= any(top[m] > load(base + m * width) + reach);
    for (int m = 0; m < vectors; ++m) {
      const Float before = load(base + m * width);
      const Float now = select(top[m] > before + reach, top[m], before);
      // No visible key so far: any finite base makes all weights 0.
      top[m] = select(now == -infinity, Float{}, now);
      total[m] = load(sum + m * width);
      if (rescaled) {
        const Float change = exponential(before - top[m]);
        store(base + m * width, now);
        store(factor + m * width, change);
        total[m] *= change;
      }
    }
    for (int m = 0; m < vectors; ++m) top[m] = exponential.base(top[m]);
    // Blocked summation loses less precision, as in the GEMMs.
    constexpr std::int64_t run = 16;
    for (std::int64_t begin = 0; begin < rows; begin += run) {
      Float added[vectors] = {};
      const auto weight = [&](std::int64_t r, int m) {
        const Float w = exponential.above(top[m], load(scores + r * panel + m * width));
        added[m] += w;
        return w;
      };
      const std::int64_t end = smaller(rows, begin + run);
      std::int64_t r = begin;
      for (; r + 1 < end; r += 2) {
        for (int m = 0; m < vectors; ++m) {
          const Float lower = weight(r, m), upper = weight(r + 1, m);
          emit(r, m * width, lower, upper);
        }
      }
      if (r < end)
        for (int m = 0; m < vectors; ++m) emit(r, m * width, weight(r, m), Float{});
      for (int m = 0; m < vectors; ++m) total[m] += added[m];
    }
    for (int m = 0; m < vectors; ++m) store(sum + m * width, total[m]);
    return rescaled;
  }

  ROCFLASH_INLINE bool is_fully_masked(int lane) const { return sum[lane] == 0; }
};

// Stores the weights (s_dmask): recomputes the scores now that their sum is known.
template <int vectors>
[[gnu::noinline]] void store_weights(const Head& head, const Tile& tile, const float* scores,
                                     const float* keep, const OnlineSoftmax& softmax,
                                     const PerScore& to) {
  constexpr int panel = vectors * width;
  for (int n = 0; n < tile.queries.size(); ++n) {
    const double base = softmax.is_fully_masked(n) ? 0.0 : static_cast<double>(softmax.base[n]);
    const double over =
        softmax.is_fully_masked(n) ? 0.0 : 1.0 / static_cast<double>(softmax.sum[n]);
    for (std::int64_t r = 0; r < tile.keys.size(); ++r) {
      // A masked key has weight 0, whatever the sum of the row.
      const float score = scores[r * panel + n];
      const double difference = static_cast<double>(score) - base;
      const double weight =
          score == -infinity ? 0.0 : __builtin_exp(difference * head.score_scale) * over;
      store_double(to.row(head.b, head.h, tile.queries.begin + n), to.dtype,
                   (tile.keys.begin + r) * to.key_stride,
                   keep && keep[r * panel + n] == 0 ? -weight : weight);
    }
  }
}

// Output without remaining weight contributes nothing, even if it is infinite.
template <int vectors>
[[gnu::noinline]] void rescale(float* out, int columns, const float* factor) {
  for (int c = 0; c < columns; ++c) {
    for (int m = 0; m < vectors; ++m) {
      float* at = out + (c * vectors + m) * width;
      const Float by = load(factor + m * width);
      store(at, select(by == 0.0f, Float{}, load(at) * by));
    }
  }
}

template <class Gemm>
class Block {
  static constexpr int vectors = Gemm::vectors, panel = Gemm::panel;
  static constexpr int rows_together = Gemm::rows_together;
  static constexpr int max_panels = max_forward_block / (max_vectors * width);

 public:
  Block(const Head& head, Range queries, float* memory)
      : head_(head),
        p_(head.problem),
        queries_(queries),
        panels_(static_cast<int>(blocks_of(queries.size(), panel))),
        scratch_(memory),
        gemm_(scratch_, static_cast<int>(larger(p_.head_dim, p_.value_dim))),
        k_(scratch_, p_.head_dim, rows_together),
        v_(scratch_, p_.value_dim, rows_together),
        exponential_(head.exponent) {
    scores_ = scratch_.take(panel * stream_rows);
    bias_ = scratch_.take(panel * stream_rows);
    keep_ = scratch_.take(panel * stream_rows);
    for (int n = 0; n < panels_; ++n) {
      q_[n] = typename Gemm::LaneOperand(scratch_, p_.head_dim);
      q_[n].load(head.queries_of(p_.q, queries_of(n)), head.scale.lanes);
      out_[n] = scratch_.take(std::int64_t{panel} * p_.value_dim);
      float* statistics = scratch_.take(3 * panel);
      softmax_[n] = {statistics, statistics + panel, statistics + 2 * panel};
    }
  }

  void attend() {
    for (int n = 0; n < panels_; ++n) {
      __builtin_memset(out_[n], 0, sizeof(float) * panel * static_cast<std::size_t>(p_.value_dim));
      softmax_[n].template start<vectors>(head_, queries_of(n).size());
    }
    Range keys = visible(queries_);
    keys.begin = floor_to(keys.begin, stream_rows);
    const auto from = [&](std::int64_t j) {
      return Range{j, smaller(keys.end, floor_to(j, rows_together) + rows_together)};
    };
    for (Range here = from(keys.begin); !here.empty(); here = next_) {
      next_ = from(here.end);
      k_.load(head_.keys(here), head_.scale.rows);
      v_.load(head_.values(here), value_scale_);
      for (int n = 0; n < panels_; ++n) attend(n, here);
    }
  }

  void store(const ForwardOutputs& o) {
    bool finite = true;
    for (int n = 0; n < panels_; ++n) {
      const OnlineSoftmax& softmax = softmax_[n];
      const Range queries = queries_of(n);
      double factor[panel] = {};
      for (int lane = 0; lane < queries.size(); ++lane) {
        if (o.lse) {
          o.lse.at(head_.b, head_.h, head_.sequence.q_row + queries.begin + lane) =
              head_.lse(softmax.base[lane], softmax.sum[lane]);
        }
        factor[lane] = factor_of(softmax, lane);
      }
      finite &= store_lanes(out_[n], panel, factor, head_.queries_of(o.out, queries));
    }
    if (!finite) recompute_nonfinite(o.out);
    if (o.s_dmask) store_weights_of(o);
  }

 private:
  ROCFLASH_INLINE double factor_of(const OnlineSoftmax& softmax, int lane) const {
    return softmax.is_fully_masked(lane)
               ? 0.0
               : static_cast<double>(p_.dropout.scale()) / static_cast<double>(softmax.sum[lane]);
  }
  // Unnormalized sums of values may overflow where the results do not. Non-finite results are
  // recomputed with scaled values.
  [[gnu::noinline]] void recompute_nonfinite(const Rows& out) {
    bool some = false;
    for (int n = 0; n < panels_; ++n)
      for (int lane = 0; lane < queries_of(n).size(); ++lane)
        some |= softmax_[n].sum[lane] - softmax_[n].sum[lane] == 0;
    if (!some) return;  // NaN everywhere
    value_scale_ = 0x1p-48f;
    attend();
    value_scale_ = 1.0f;
    for (int n = 0; n < panels_; ++n) {
      const RowBlock rows = head_.queries_of(out, queries_of(n));
      for (int lane = 0; lane < rows.count; ++lane) {
        const double factor = factor_of(softmax_[n], lane) * 0x1p48;
        with_elements(out.dtype, rows.row(lane), [&](auto* row) {
          for (int c = 0; c < out.columns; ++c) {
            const float before = load_scalar(row + c);
            const auto sum = static_cast<double>(out_[n][c * panel + lane]);
            if (before - before != 0) store_scalar(row + c, static_cast<float>(sum * factor));
          }
        });
      }
    }
  }
  void store_weights_of(const ForwardOutputs& o) {
    for (std::int64_t j = 0; j < head_.sequence.sk; j += stream_rows) {
      const Range here{j, smaller(head_.sequence.sk, j + stream_rows)};
      k_.load(head_.keys(here), head_.scale.rows);
      for (int n = 0; n < panels_; ++n) {
        const Tile tile{queries_of(n), here};
        score(n, tile, 0);
        if (p_.dropout.on()) dropout_mask<Lanes::queries, vectors>(head_, tile, keep_);
        store_weights<vectors>(head_, tile, scores_, p_.dropout.on() ? keep_ : nullptr, softmax_[n],
                               o.s_dmask);
      }
    }
  }
  ROCFLASH_INLINE Range visible(Range queries) const {
    return visible_keys(p_.visibility, queries, head_.sequence.sq, head_.sequence.sk);
  }
  ROCFLASH_INLINE Range queries_of(int n) const {
    return {queries_.begin + n * panel, smaller(queries_.end, queries_.begin + (n + 1) * panel)};
  }
  void score(int n, const Tile& tile, std::int64_t row) {
    gemm_.score(k_.from(row), tile.keys.size(), q_[n], {scores_, panel});
    finish_scores<Lanes::queries, vectors>(head_, tile, scores_, bias_, nullptr);
  }
  // Rescales the output if the softmax requires it, after `flush`.
  template <class Emit, class Settle>
  void update(int n, std::int64_t rows, Emit emit, Settle flush) {
    if (!softmax_[n].template update<vectors>(scores_, rows, exponential_, emit)) return;
    flush();
    rescale<vectors>(out_[n], p_.value_dim, softmax_[n].factor);
  }
  // A panel against the loaded keys, tile by tile. With packed weights, the GEMM with v covers
  // several tiles: its accumulators are loaded and stored once. Meanwhile the next keys and values
  // are prefetched.
  void attend(int n, Range keys) {
    constexpr int tiles = rows_together / stream_rows;
    const Panel<float> sums{out_[n], panel};
    const Range visible_range = visible(queries_of(n));
    const bool packs = Gemm::packs && !p_.dropout.on();
    Range pending{0, 0};  // rows of packed weights
    const auto flush = [&] {
      if constexpr (Gemm::packs)
        if (!pending.empty()) gemm_.accumulate_packed(v_.from(pending.begin), pending, sums);
      pending.begin = pending.end;
    };
    for (std::int64_t j = keys.begin; j < keys.end; j += stream_rows) {
      const Tile tile{queries_of(n),
                      {j, smaller(smaller(keys.end, j + stream_rows), visible_range.end)}};
      const std::int64_t row = j - keys.begin, rows = tile.keys.size();
      const auto prefetch_rows = [&](const Rows& rows_of) {
        prefetch(head_.keys_of(rows_of, next_), n * tiles + static_cast<int>(row / stream_rows),
                 panels_ * tiles);
      };
      const bool masked = tile.keys.empty() || visible_range.begin >= j + stream_rows;
      prefetch_rows(p_.k);
      if (!masked) score(n, tile, row);
      prefetch_rows(p_.v);
      if (masked) continue;
      if constexpr (Gemm::packs) {
        if (packs) {
          if (pending.empty()) pending = {row, row};
          update(
              n, rows,
              [&](std::int64_t r, int lane, Float lower, Float upper) {
                gemm_.pack(row + r, lane, lower, upper);
              },
              flush);
          pending.end = row + rows;
          continue;
        }
      }
      accumulate_tile(n, tile, row);
    }
    flush();
  }
  void accumulate_tile(int n, const Tile& tile, std::int64_t row) {
    const std::int64_t rows = tile.keys.size();
    // The buffer has space for one row more than an odd number.
    update(
        n, rows,
        [&](std::int64_t r, int lane, Float lower, Float upper) {
          ROCFLASH_ISA::store(scores_ + r * panel + lane, lower);
          ROCFLASH_ISA::store(scores_ + (r + 1) * panel + lane, upper);
        },
        [] {});
    if (p_.dropout.on()) {
      dropout_mask<Lanes::queries, vectors>(head_, tile, keep_);
      for (std::int64_t e = 0; e < rows * panel; e += width)
        blend_lanes(scores_ + e, load(keep_ + e) != 0.0f, 0.0f);
    }
    gemm_.accumulate(v_.from(row), rows, {scores_, panel}, {out_[n], panel});
  }

  const Head& head_;
  const Problem& p_;
  const Range queries_;
  const int panels_;
  Range next_{0, 0};          // keys to load next
  float value_scale_ = 1.0f;  // a power of two by which values are multiplied
  Scratch scratch_;
  Gemm gemm_;
  typename Gemm::Rows k_;
  typename Gemm::Values v_;
  const typename Gemm::Exponent exponential_;
  float *scores_, *bias_, *keep_;  // [key][lane]
  typename Gemm::LaneOperand q_[max_panels];
  OnlineSoftmax softmax_[max_panels];
  float* out_[max_panels];  // [column][lane]
};

}  // namespace

void forward(const Problem& p, const ForwardOutputs& o, WorkItem item, int rows, float* scratch) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * rows, smaller(head.sequence.sq, (item.block + 1) * rows)};
  const auto attend = [&]<class Gemm>() {
    Block<Gemm> queries(head, block, scratch);
    queries.attend();
    queries.store(o);
  };
  if (needs_f32_products(p)) return with_f32_gemm(block.size(), p.dtype, attend);
  with_gemm(block.size(), p.dtype, p.k.dtype, attend);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
