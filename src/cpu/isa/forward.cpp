// Forward: a block of queries stays in vector lanes while tiles of keys and values stream past. The
// scores of one tile are all that ever exists of the score matrix.
#include "cpu/isa/gemm.hpp"
#include "cpu/isa/kernels.hpp"
#include "cpu/isa/score.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

// Running softmax of one query per lane: highest score, sum of weights relative to it, and the
// factor by which the last tile changed what was accumulated before.
struct OnlineSoftmax {
  float *highest, *sum, *factor;

  // The sink, if there is one, is the first weight.
  template <int vectors>
  ROCFLASH_INLINE void start(float sink) {
    for (int n = 0; n < vectors * width; ++n) {
      highest[n] = sink;
      sum[n] = sink == -infinity ? 0.0f : 1.0f;
    }
  }

  // Turns a tile of scores into weights.
  template <int vectors>
  ROCFLASH_INLINE void absorb(float* scores, std::int64_t rows, const Exponential& exponential) {
    constexpr int panel = vectors * width;
    Float top[vectors], total[vectors];
    for (int m = 0; m < vectors; ++m) top[m] = load(highest + m * width);
    for (std::int64_t r = 0; r < rows; ++r)
      for (int m = 0; m < vectors; ++m)
        top[m] = larger(load(scores + r * panel + m * width), top[m]);
    for (int m = 0; m < vectors; ++m) {
      const Float before = load(highest + m * width);
      store(highest + m * width, top[m]);
      // Nothing seen so far: any finite base makes all weights 0.
      top[m] = select(top[m] == -infinity, Float{}, top[m]);
      store(factor + m * width, exponential(before - top[m]));
      total[m] = Float{};
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int m = 0; m < vectors; ++m) {
        const Float weight = exponential(load(scores + r * panel + m * width) - top[m]);
        total[m] += weight;
        store(scores + r * panel + m * width, weight);
      }
    }
    for (int m = 0; m < vectors; ++m)
      store(sum + m * width, load(sum + m * width) * load(factor + m * width) + total[m]);
  }

  ROCFLASH_INLINE bool saw_nothing(int lane) const { return sum[lane] == 0; }
};

// The weights themselves, for callers who ask: scores again, now that their sum is known.
template <int vectors>
[[gnu::noinline]] void store_weights(const Head& head, const Tile& tile, const float* scores,
                                     const float* keep, const OnlineSoftmax& softmax,
                                     const Plane& to) {
  constexpr int panel = vectors * width;
  for (int n = 0; n < tile.queries.size(); ++n) {
    const double base = softmax.saw_nothing(n) ? 0.0 : static_cast<double>(softmax.highest[n]);
    const double over = softmax.saw_nothing(n) ? 0.0 : 1.0 / static_cast<double>(softmax.sum[n]);
    for (std::int64_t r = 0; r < tile.keys.size(); ++r) {
      const double difference = static_cast<double>(scores[r * panel + n]) - base;
      const double weight = __builtin_exp(difference * head.unit) * over;
      store_double(to.row(head.b, head.h, tile.queries.begin + n), to.dtype,
                   (tile.keys.begin + r) * to.key_stride,
                   keep && keep[r * panel + n] == 0 ? -weight : weight);
    }
  }
}

// Products of one tile in f32, whatever the tensors' dtype.
template <int vectors>
struct InFloat {
  static constexpr int panel = vectors * width;
  const Problem& p;
  float *q, *k, *v;  // q: [panel][column][lane]; k, v: [key][column]
  bool finite = true;

  ROCFLASH_INLINE InFloat(const Problem& problem, float* queries, float* keys, float* values)
      : p(problem), q(queries), k(keys), v(values) {}
  ROCFLASH_INLINE float* queries(int n) const { return q + std::int64_t{n} * p.head_dim * panel; }
  ROCFLASH_INLINE void load_queries(int n, const RowBlock& block) {
    load_lanes(queries(n), panel, block);
  }
  ROCFLASH_INLINE void load_keys(const RowBlock& block) { load_rows(k, padded(p.head_dim), block); }
  ROCFLASH_INLINE void load_values(const RowBlock& block) {
    finite = load_rows(v, padded(p.value_dim), block);
  }
  ROCFLASH_INLINE void score(int n, std::int64_t keys, float* scores) const {
    dot_products<vectors>(run_of_terms(p.dtype), keys, p.head_dim, {k, padded(p.head_dim), 1},
                          {queries(n), panel}, {scores, panel});
  }
  ROCFLASH_INLINE void weigh(std::int64_t keys, float* weights, float* out,
                             const float* factor) const {
    ROCFLASH_ISA::weigh<vectors, Into::scale_and_add>(finite, run_of_terms(p.dtype), p.value_dim,
                                                      keys, {v, 1, padded(p.value_dim)},
                                                      {weights, panel}, {out, panel}, factor);
  }
};

#if defined(__AVX512BF16__)
// Products of pairs of bf16 numbers: of columns for the scores, of keys for the values. Weights are
// rounded to bf16, as plain attention rounds them. Tiles with infinite values or NaN are weighed in
// f32, where weights of 0 can be skipped.
template <int vectors>
struct InPairs {
  static constexpr int panel = vectors * width;
  using Words = std::uint32_t;
  InFloat<vectors> in_float;
  const Problem& p;
  Words *k, *v;  // [key][column / 2] and [key / 2][column]; q is [panel][column / 2][lane]
  std::int64_t pairs, key_stride;
  bool finite = true;

  ROCFLASH_INLINE InPairs(const Problem& problem, float* queries, float* keys, float* values)
      : in_float(problem, queries, keys, values),
        p(problem),
        k(reinterpret_cast<Words*>(keys)),
        v(reinterpret_cast<Words*>(values)),
        pairs((p.head_dim + 1) / 2),
        key_stride(padded(p.head_dim / 2 + 1)) {}

  // Pairs up rows of floats in place: a pair never lies behind the rows it is made of.
  ROCFLASH_INLINE static Words* pair_rows(float* rows, std::int64_t count) {
    auto* const words = reinterpret_cast<Words*>(rows);
    for (std::int64_t n = 0; n < count; n += 2) {
      for (int m = 0; m < panel; m += width) {
        const Float lower = load(rows + n * panel + m),
                    upper = n + 1 < count ? load(rows + (n + 1) * panel + m) : Float{};
        store(words + n / 2 * panel + m, pair_up(lower, upper));
      }
    }
    return words;
  }
  ROCFLASH_INLINE void load_queries(int n, const RowBlock& block) {
    in_float.load_queries(n, block);
    pair_rows(in_float.queries(n), p.head_dim);
  }
  ROCFLASH_INLINE void load_keys(const RowBlock& block) { load_column_pairs(k, key_stride, block); }
  ROCFLASH_INLINE void load_values(const RowBlock& block) {
    finite = load_row_pairs(v, padded(p.value_dim), block);
    if (!finite) in_float.load_values(block);
  }
  ROCFLASH_INLINE void score(int n, std::int64_t keys, float* scores) const {
    const auto* const q = reinterpret_cast<const Words*>(in_float.queries(n));
    gemm<vectors, Into::overwrite, Words>(keys, pairs, {k, key_stride, 1}, {q, panel},
                                          {scores, panel}, nullptr);
  }
  ROCFLASH_INLINE void weigh(std::int64_t keys, float* weights, float* out,
                             const float* factor) const {
    if (!finite) return in_float.weigh(keys, weights, out, factor);
    const Words* const words = pair_rows(weights, keys);
    gemm<vectors, Into::scale_and_add, Words>(p.value_dim, (keys + 1) / 2,
                                              {v, 1, padded(p.value_dim)}, {words, panel},
                                              {out, panel}, factor);
  }
};
#endif

template <int vectors, template <int> class Products>
void run(const Head& head, const ForwardOutputs& o, Range block, float* memory) {
  constexpr int panel = vectors * width;
  constexpr int panels = lane_rows / panel;
  const Problem& p = head.problem;
  const int d = p.head_dim, dv = p.value_dim;
  Scratch scratch(memory);
  float* q = scratch.take(std::int64_t{lane_rows} * d);     // [panel][d][lane]
  float* out = scratch.take(std::int64_t{lane_rows} * dv);  // [panel][dv][lane]
  float* k = scratch.take(stream_rows * padded(d));         // [key][d]
  float* v = scratch.take(stream_rows * padded(dv));        // [key][dv]
  float* scores = scratch.take(panel * stream_rows);        // [key][lane]
  float* bias = scratch.take(panel * stream_rows);          // likewise
  float* keep = scratch.take(panel * stream_rows);          // likewise
  float* statistics = scratch.take(3 * lane_rows);          // [panel][3][lane]
  Products<vectors> products(p, q, k, v);

  const auto queries_of = [&](int n) {
    return Range{block.begin + n * panel, smaller(block.end, block.begin + (n + 1) * panel)};
  };
  const auto softmax_of = [&](int n) {
    float* s = statistics + n * 3 * panel;
    return OnlineSoftmax{s, s + panel, s + 2 * panel};
  };
  const auto raw_scores = [&](int n, const Tile& tile) {
    products.score(n, tile.keys.size(), scores);
    finish_scores<Lanes::queries, vectors>(head, tile, scores, bias, nullptr);
  };

  for (int n = 0; n < panels && !queries_of(n).empty(); ++n) {
    products.load_queries(n, head.queries_of(p.q, queries_of(n)));
    softmax_of(n).template start<vectors>(head.sink);
  }
  __builtin_memset(out, 0, sizeof(float) * lane_rows * static_cast<std::size_t>(dv));

  const Exponential exponential(head.exponent);
  Range keys = visible_keys(p.visibility, block, head.sequence.sq, head.sequence.sk);
  keys.begin = floor_to(keys.begin, dropout_keys_per_call);
  for (std::int64_t j = keys.begin; j < keys.end; j += stream_rows) {
    const Range here{j, smaller(keys.end, j + stream_rows)};
    products.load_keys(head.keys_of(p.k, here));
    products.load_values(head.keys_of(p.v, here));
    for (int n = 0; n < panels && !queries_of(n).empty(); ++n) {
      const Tile tile{queries_of(n), here};
      OnlineSoftmax softmax = softmax_of(n);
      raw_scores(n, tile);
      softmax.absorb<vectors>(scores, here.size(), exponential);
      if (p.dropout.on()) {
        draw_dropout<Lanes::queries, vectors>(head, tile, keep);
        for (std::int64_t e = 0; e < here.size() * panel; e += width)
          store(scores + e, select(load(keep + e) != 0.0f, load(scores + e), Float{}));
      }
      products.weigh(here.size(), scores, out + std::int64_t{n} * dv * panel, softmax.factor);
    }
  }

  for (int n = 0; n < panels && !queries_of(n).empty(); ++n) {
    const OnlineSoftmax softmax = softmax_of(n);
    const Range queries = queries_of(n);
    double factor[panel];
    for (int lane = 0; lane < queries.size(); ++lane) {
      if (o.lse) {
        o.lse.at(head.b, head.h, head.sequence.q_row + queries.begin + lane) =
            head.lse(softmax.highest[lane], softmax.sum[lane]);
      }
      factor[lane] = softmax.saw_nothing(lane) ? 0.0
                                               : static_cast<double>(p.dropout.scale()) /
                                                     static_cast<double>(softmax.sum[lane]);
    }
    store_lanes(out + std::int64_t{n} * dv * panel, panel, factor, head.queries_of(o.out, queries));
  }

  if (!o.s_dmask) return;
  for (std::int64_t j = 0; j < head.sequence.sk; j += stream_rows) {
    const Range here{j, smaller(head.sequence.sk, j + stream_rows)};
    products.load_keys(head.keys_of(p.k, here));
    for (int n = 0; n < panels && !queries_of(n).empty(); ++n) {
      const Tile tile{queries_of(n), here};
      raw_scores(n, tile);
      if (p.dropout.on()) draw_dropout<Lanes::queries, vectors>(head, tile, keep);
      store_weights<vectors>(head, tile, scores, p.dropout.on() ? keep : nullptr, softmax_of(n),
                             o.s_dmask);
    }
  }
}

}  // namespace

void forward(const Problem& p, const ForwardOutputs& o, WorkItem item, float* scratch) {
  const Head head(p, item.batch, item.head);
  const Range block{item.block * lane_rows,
                    smaller(head.sequence.sq, (item.block + 1) * lane_rows)};
  with_panel(block.size(), [&]<int vectors>() {
#if defined(__AVX512BF16__)
    if (p.dtype == DType::bf16 && p.k.dtype == DType::bf16)
      return run<vectors, InPairs>(head, o, block, scratch);
#endif
    run<vectors, InFloat>(head, o, block, scratch);
  });
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
