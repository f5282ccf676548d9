// What happens to a tile of raw scores q.k before the softmax: scale, softcap, ALiBi, bias, masks;
// and dropout's bits.
//
// A tile holds scores[r][lane]. With queries in lanes r runs over keys; with keys in lanes it runs
// over queries. Both kinds share all code but the few lines that say where a number comes from.
#pragma once

#include "core/philox.hpp"
#include "cpu/isa/tile.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

enum class Lanes { queries, keys };

// One head of one sequence, with what its scores are made of.
struct Head {
  const Problem& problem;
  std::int64_t b, h;
  Sequence sequence;
  float slope;     // of ALiBi
  bool shaped;     // scores are changed beyond a positive factor, so `shape` must see every tile
  float exponent;  // weights are exp2(exponent * difference of scores)
  double unit;     // scores times this are what softmax sees
  float sink;      // the sink's score, or -infinity

  ROCFLASH_INLINE Head(const Problem& p, std::int64_t batch, std::int64_t head)
      : problem(p), b(batch), h(head), sequence(p.lengths.sequence(batch)) {
    slope = p.alibi ? static_cast<float>(p.alibi.at(b, h)) : 0.0f;
    shaped = p.softcap > 0 || p.alibi || p.bias || p.mask || p.sinks || p.scale <= 0;
    constexpr double log2_e_exact = 1.4426950408889634;
    unit = shaped ? 1.0 : static_cast<double>(p.scale);
    exponent = static_cast<float>(unit * log2_e_exact);
    sink = p.sinks ? static_cast<float>(p.sinks.at(0, h)) : -infinity;
  }

  // From the highest score and the sum of weights relative to it.
  ROCFLASH_INLINE float lse(float highest, float sum) const {
    if (sum == 0) return infinity;  // nothing was seen
    return static_cast<float>(static_cast<double>(highest) * unit +
                              __builtin_log(static_cast<double>(sum)));
  }
  ROCFLASH_INLINE Range visible(std::int64_t query) const {
    return visible_keys(problem.visibility, query, sequence.sq, sequence.sk);
  }
  ROCFLASH_INLINE RowBlock queries_of(const Rows& rows, Range r) const {
    return {rows, b, sequence.q_row + r.begin, h, static_cast<int>(r.size())};
  }
  ROCFLASH_INLINE RowBlock keys_of(const Rows& rows, Range r) const {
    return {rows, b, sequence.k_row + r.begin, problem.kv_head(h), static_cast<int>(r.size())};
  }
};

// A rectangle of the score matrix.
struct Tile {
  Range queries, keys;
};

template <Lanes lanes>
ROCFLASH_INLINE Range streamed(const Tile& t) {
  return lanes == Lanes::queries ? t.keys : t.queries;
}

// bias + mask (as 0 or -inf), laid out as the scores are.
template <Lanes lanes, int panel>
[[gnu::noinline]] static void load_bias(const Head& head, const Tile& tile, float* to) {
  const Problem& p = head.problem;
  constexpr std::int64_t query_step = lanes == Lanes::queries ? 1 : panel;
  constexpr std::int64_t key_step = lanes == Lanes::queries ? panel : 1;
  const auto keys = static_cast<int>(tile.keys.size());
  for (std::int64_t i = 0; i < tile.queries.size(); ++i) {
    float* row = to + i * query_step;
    if (p.bias) {
      with_elements(p.bias.dtype, p.bias.row(head.b, head.h, tile.queries.begin + i),
                    [&](const auto* from) {
                      from += tile.keys.begin * p.bias.key_stride;
                      for (int j = 0; j < keys; ++j)
                        row[j * key_step] = load_scalar(from + j * p.bias.key_stride);
                    });
    } else {
      for (int j = 0; j < keys; ++j) row[j * key_step] = 0.0f;
    }
    if (p.mask) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(
                             p.mask.row(head.b, head.h, tile.queries.begin + i)) +
                         tile.keys.begin * p.mask.key_stride;
      for (int j = 0; j < keys; ++j) {
        if (from[j * p.mask.key_stride] == 0) row[j * key_step] = -infinity;
      }
    }
  }
}

// Scale, softcap, ALiBi, bias and mask. `bias` is scratch for a tile. `slopes`, when given,
// receives d(score) / d(scale * q.k) for each score.
template <Lanes lanes, int vectors>
[[gnu::noinline]] static void shape(const Head& head, const Tile& tile, float* scores, float* bias,
                                    float* slopes) {
  constexpr int panel = vectors * width;
  const Problem& p = head.problem;
  const bool has_bias = p.bias || p.mask;
  if (has_bias) load_bias<lanes, panel>(head, tile, bias);
  const float scale_in_cap = p.softcap > 0 ? p.scale / p.softcap : 0.0f;
  // How far right of the lane's place the streamed row stands, up to sign: |place - key|.
  const auto corner = static_cast<float>(tile.queries.begin + head.sequence.sk - head.sequence.sq -
                                         tile.keys.begin);
  const float lane_sign = lanes == Lanes::queries ? 1.0f : -1.0f;
  const Float index = to_float(lane_index());
  for (std::int64_t r = 0; r < streamed<lanes>(tile).size(); ++r) {
    const float distance_here = corner - lane_sign * static_cast<float>(r);
    for (int m = 0; m < vectors; ++m) {
      float* at = scores + r * panel + m * width;
      Float s = load(at);
      if (p.softcap > 0) {
        const Float t = tanh(s * scale_in_cap);
        if (slopes) store(slopes + r * panel + m * width, 1.0f - t * t);
        s = t * p.softcap;
      } else {
        s *= p.scale;
      }
      if (head.slope != 0) {
        const Float distance = distance_here + lane_sign * (index + static_cast<float>(m * width));
        s -= head.slope * absolute(distance);
      }
      if (has_bias) {
        // A bias of -inf hides the key, whatever its score.
        const Float b = load(bias + r * panel + m * width);
        s = select(b == -infinity, b, s + b);
      }
      store(at, s);
    }
  }
}

// -inf where position hides the key. Only tiles on the edge of what is visible need it.
template <Lanes lanes, int vectors>
[[gnu::noinline]] static void hide(const Head& head, const Tile& tile, float* scores) {
  constexpr int panel = vectors * width;
  constexpr std::int64_t far = 1 << 30;
  const auto bounds = [&](std::int64_t query) {
    const Range seen = head.visible(query);
    const auto clamp = [&](std::int64_t key) {
      return static_cast<std::int32_t>(smaller(larger(key - tile.keys.begin, -far), far));
    };
    struct Bounds {
      std::int32_t begin, end;
    };
    return Bounds{clamp(seen.begin), clamp(seen.end)};
  };
  if constexpr (lanes == Lanes::queries) {
    for (int m = 0; m < panel; m += width) {
      Int begin, end;
      for (int n = 0; n < width; ++n) {
        const auto seen = bounds(tile.queries.begin + m + n);
        begin[n] = seen.begin;
        end[n] = seen.end;
      }
      for (std::int32_t r = 0; r < tile.keys.size(); ++r) {
        float* at = scores + r * panel + m;
        store(at, select((r >= begin) & (r < end), load(at), splat(-infinity)));
      }
    }
  } else {
    for (std::int64_t r = 0; r < tile.queries.size(); ++r) {
      const auto seen = bounds(tile.queries.begin + r);
      for (int m = 0; m < panel; m += width) {
        const Int key = lane_index() + m;
        float* at = scores + r * panel + m;
        store(at, select((key >= seen.begin) & (key < seen.end), load(at), splat(-infinity)));
      }
    }
  }
}

template <Lanes lanes, int vectors>
ROCFLASH_INLINE void finish_scores(const Head& head, const Tile& tile, float* scores, float* bias,
                                   float* slopes) {
  if (head.shaped) shape<lanes, vectors>(head, tile, scores, bias, slopes);
  if (!head.problem.visibility.bounded()) return;
  const Range common =
      common_keys(head.problem.visibility, tile.queries, head.sequence.sq, head.sequence.sk);
  if (tile.keys.begin < common.begin || tile.keys.end > common.end)
    hide<lanes, vectors>(head, tile, scores);
}

// 1 where dropout keeps the weight, 0 where it does not. tile.keys must begin at a multiple of
// eight.
template <Lanes lanes, int vectors>
[[gnu::noinline]] static void draw_dropout(const Head& head, const Tile& tile, float* keep) {
  constexpr int panel = vectors * width;
  const Dropout& d = head.problem.dropout;
  const std::int64_t plane = head.b * head.problem.heads + head.h;
  if constexpr (lanes == Lanes::queries) {
    const PhiloxKey seed = d.key();
    for (std::int64_t j = 0; j < tile.keys.size(); j += dropout_keys_per_call) {
      for (int m = 0; m < panel; m += width) {
        Word c0 = splat(static_cast<std::uint32_t>((tile.keys.begin + j) / dropout_keys_per_call));
        Word c1 = (Word)lane_index() + static_cast<std::uint32_t>(tile.queries.begin + m);
        Word c2 = splat(static_cast<std::uint32_t>(plane)),
             c3 = splat(static_cast<std::uint32_t>(d.offset));
        std::uint32_t k0 = seed.word[0], k1 = seed.word[1];
        for (int round = 0; round < philox_rounds;
             ++round, k0 += philox_weyl_0, k1 += philox_weyl_1) {
          Word high_0, low_0, high_1, low_1;
          multiply_wide(c0, philox_multiplier_0, high_0, low_0);
          multiply_wide(c2, philox_multiplier_1, high_1, low_1);
          c0 = high_1 ^ c1 ^ k0;
          c1 = low_1;
          c2 = high_0 ^ c3 ^ k1;
          c3 = low_0;
        }
        const Word words[] = {c0, c1, c2, c3};
        for (int slot = 0; slot < dropout_keys_per_call && j + slot < tile.keys.size(); ++slot) {
          const Word bits = (words[slot / 2] >> (16 * (slot % 2))) & 0xffffu;
          store(keep + (j + slot) * panel + m,
                select((Int)bits < static_cast<std::int32_t>(d.threshold), splat(1.0f), Float{}));
        }
      }
    }
  } else {
    for (std::int64_t i = 0; i < tile.queries.size(); ++i) {
      for (int j = 0; j < panel; j += dropout_keys_per_call) {
        const PhiloxCounter words = d.bits(plane, tile.queries.begin + i, tile.keys.begin + j);
        for (int slot = 0; slot < dropout_keys_per_call && j + slot < panel; ++slot) {
          const std::uint32_t bits = (words.word[slot / 2] >> (16 * (slot % 2))) & 0xffffu;
          keep[i * panel + j + slot] = bits < d.threshold ? 1.0f : 0.0f;
        }
      }
    }
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
