// Forward: a block of queries stays in vector lanes, panel by panel, while tiles of keys and values
// stream past. The scores of one tile are all that ever exists of the score matrix.
#include "cpu/isa/kernels.hpp"
#include "cpu/isa/products.hpp"
#include "cpu/isa/score.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

// Running softmax of one query per lane: a base close to the highest score, and the sum of weights
// relative to it. The base follows only where scores outgrow it by a lot: weights up to 2^8 are as
// good as weights up to 1, and most tiles then leave what was accumulated before as it is.
struct OnlineSoftmax {
  static constexpr float slack = 8.0f;  // in powers of two
  float *base, *sum, *factor;

  // The sink, if there is one, is the first weight.
  template <int vectors>
  ROCFLASH_INLINE void start(float sink) {
    for (int n = 0; n < vectors * width; ++n) {
      base[n] = sink;
      sum[n] = sink == -infinity ? 0.0f : 1.0f;
    }
  }

  // Turns a tile of scores into weights, and hands them over by pairs of rows: emit(row, lane,
  // weights of the row, of the next); a row that is not there has none. Returns whether some base
  // changed: what was accumulated before is then to be multiplied by `factor`.
  template <int vectors, class Exponent, class Emit>
  ROCFLASH_INLINE bool absorb(const float* scores, std::int64_t rows, const Exponent& exponential,
                              Emit emit) {
    constexpr int panel = vectors * width;
    const float reach = slack / exponential.factor;
    Float top[vectors], total[vectors];
    for (int m = 0; m < vectors; ++m) top[m] = splat(-infinity);
    for (std::int64_t r = 0; r < rows; ++r)
      for (int m = 0; m < vectors; ++m)
        top[m] = larger(load(scores + r * panel + m * width), top[m]);
    bool moved = false;
    for (int m = 0; m < vectors; ++m) moved |= any(top[m] > load(base + m * width) + reach);
    for (int m = 0; m < vectors; ++m) {
      const Float before = load(base + m * width);
      const Float now = select(top[m] > before + reach, top[m], before);
      // Nothing seen so far: any finite base makes all weights 0.
      top[m] = select(now == -infinity, Float{}, now);
      total[m] = load(sum + m * width);
      if (moved) {
        const Float change = exponential(before - top[m]);
        store(base + m * width, now);
        store(factor + m * width, change);
        total[m] *= change;
      }
    }
    Float added[vectors] = {};
    const auto weight = [&](std::int64_t r, int m) {
      const Float w = exponential(load(scores + r * panel + m * width) - top[m]);
      added[m] += w;
      return w;
    };
    std::int64_t r = 0;
    for (; r + 1 < rows; r += 2) {
      for (int m = 0; m < vectors; ++m) {
        const Float lower = weight(r, m), upper = weight(r + 1, m);
        emit(r, m * width, lower, upper);
      }
    }
    if (r < rows)
      for (int m = 0; m < vectors; ++m) emit(r, m * width, weight(r, m), Float{});
    for (int m = 0; m < vectors; ++m) store(sum + m * width, total[m] + added[m]);
    return moved;
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
    const double base = softmax.saw_nothing(n) ? 0.0 : static_cast<double>(softmax.base[n]);
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

template <int vectors>
[[gnu::noinline]] void rescale(float* out, int columns, const float* factor) {
  for (int c = 0; c < columns; ++c) {
    for (int m = 0; m < vectors; ++m) {
      float* at = out + (c * vectors + m) * width;
      store(at, load(at) * load(factor + m * width));
    }
  }
}

template <class Products>
void run(const Head& head, const ForwardOutputs& o, Range block, float* memory) {
  constexpr int vectors = Products::vectors, panel = Products::panel;
  constexpr int most_panels = most_forward_block / (most_vectors * width);
  const Problem& p = head.problem;
  const int d = p.head_dim, dv = p.value_dim;
  const auto panels = static_cast<int>(blocks_of(block.size(), panel));
  Scratch scratch(memory);
  Products products(scratch, static_cast<int>(larger(d, dv)));
  typename Products::Rows k(scratch, Products::stream, d);
  typename Products::Values v(scratch, Products::stream, dv);
  float* scores = scratch.take(panel * stream_rows);  // [key][lane]
  float* bias = scratch.take(panel * stream_rows);    // likewise
  float* keep = scratch.take(panel * stream_rows);    // likewise
  typename Products::InLanes q[most_panels];
  OnlineSoftmax softmax[most_panels];
  float* out[most_panels];  // [column][lane]

  const auto queries_of = [&](int n) {
    return Range{block.begin + n * panel, smaller(block.end, block.begin + (n + 1) * panel)};
  };
  // Scores of a panel and of keys that were loaded from `loaded` on.
  const auto raw_scores = [&](int n, const Tile& tile, std::int64_t loaded) {
    products.score(k, tile.keys.begin - loaded, tile.keys.size(), q[n], {scores, panel});
    finish_scores<Lanes::queries, vectors>(head, tile, scores, bias, nullptr);
  };

  for (int n = 0; n < panels; ++n) {
    q[n] = typename Products::InLanes(scratch, d);
    q[n].load(head.queries_of(p.q, queries_of(n)));
    out[n] = scratch.take(std::int64_t{panel} * dv);
    __builtin_memset(out[n], 0, sizeof(float) * panel * static_cast<std::size_t>(dv));
    float* statistics = scratch.take(3 * panel);
    softmax[n] = {statistics, statistics + panel, statistics + 2 * panel};
    softmax[n].template start<vectors>(head.sink);
  }

  const typename Products::Exponent exponential(head.exponent);
  Range keys = visible_keys(p.visibility, block, head.sequence.sq, head.sequence.sk);
  keys.begin = floor_to(keys.begin, dropout_keys_per_call);
  for (std::int64_t j = keys.begin; j < keys.end; j += Products::stream) {
    const Range here{j, smaller(keys.end, j + Products::stream)},
        next{here.end, smaller(keys.end, here.end + Products::stream)};
    k.load(head.keys_of(p.k, here));
    v.load(head.keys_of(p.v, here));
    for (int n = 0; n < panels; ++n) {
      prefetch(head.keys_of(p.k, next), n, panels);
      prefetch(head.keys_of(p.v, next), n, panels);
      const Range seen =
          visible_keys(p.visibility, queries_of(n), head.sequence.sq, head.sequence.sk);
      const Panel<float> sums{out[n], panel};
      for (std::int64_t i = here.begin; i < smaller(here.end, seen.end); i += stream_rows) {
        const Tile tile{queries_of(n), {i, smaller(smaller(here.end, seen.end), i + stream_rows)}};
        if (seen.begin >= tile.keys.end) continue;
        raw_scores(n, tile, here.begin);
        const std::int64_t first = i - here.begin, rows = tile.keys.size();
        const auto absorb = [&](auto emit) {
          if (!softmax[n].template absorb<vectors>(scores, rows, exponential, emit)) return;
          products.settle(v, sums);
          rescale<vectors>(out[n], dv, softmax[n].factor);
        };
        if (products.takes_pairs(v) && !p.dropout.on()) {
          absorb([&](std::int64_t r, int lane, Float lower, Float upper) {
            products.pack(first + r, lane, lower, upper);
          });
          products.accept(first, rows);
        } else {
          // There is room for a row more than an odd number.
          absorb([&](std::int64_t r, int lane, Float lower, Float upper) {
            store(scores + r * panel + lane, lower);
            store(scores + (r + 1) * panel + lane, upper);
          });
          if (p.dropout.on()) {
            draw_dropout<Lanes::queries, vectors>(head, tile, keep);
            for (std::int64_t e = 0; e < rows * panel; e += width)
              store(scores + e, select(load(keep + e) != 0.0f, load(scores + e), Float{}));
          }
          products.collect(v, first, rows, {scores, panel}, sums);
        }
      }
      products.settle(v, sums);
    }
  }

  for (int n = 0; n < panels; ++n) {
    const Range queries = queries_of(n);
    double factor[panel] = {};
    for (int lane = 0; lane < queries.size(); ++lane) {
      if (o.lse) {
        o.lse.at(head.b, head.h, head.sequence.q_row + queries.begin + lane) =
            head.lse(softmax[n].base[lane], softmax[n].sum[lane]);
      }
      factor[lane] = softmax[n].saw_nothing(lane) ? 0.0
                                                  : static_cast<double>(p.dropout.scale()) /
                                                        static_cast<double>(softmax[n].sum[lane]);
    }
    store_lanes(out[n], panel, factor, head.queries_of(o.out, queries));
  }

  if (!o.s_dmask) return;
  for (std::int64_t j = 0; j < head.sequence.sk; j += stream_rows) {
    const Range here{j, smaller(head.sequence.sk, j + stream_rows)};
    k.load(head.keys_of(p.k, here));
    for (int n = 0; n < panels; ++n) {
      const Tile tile{queries_of(n), here};
      raw_scores(n, tile, j);
      if (p.dropout.on()) draw_dropout<Lanes::queries, vectors>(head, tile, keep);
      store_weights<vectors>(head, tile, scores, p.dropout.on() ? keep : nullptr, softmax[n],
                             o.s_dmask);
    }
  }
}

}  // namespace

void forward(const Problem& p, const ForwardOutputs& o, WorkItem item, float* scratch) {
  const Head head(p, item.batch, item.head);
  const int rows = forward_block(p);
  const Range block{item.block * rows, smaller(head.sequence.sq, (item.block + 1) * rows)};
  with_panel(block.size(), [&]<int vectors>() {
    with_products<vectors>(p.dtype, p.k.dtype,
                           [&]<class Products>() { run<Products>(head, o, block, scratch); });
  });
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
