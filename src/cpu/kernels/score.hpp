// Score modifiers between QK^T and softmax (scale, softcap, ALiBi, bias, mask) and the dropout
// mask.
//
// A tile holds scores[r][lane]. With queries in lanes r runs over keys; with keys in lanes r runs
// over queries. Both layouts share all code except for addressing.
#pragma once

#include "core/philox.hpp"
#include "cpu/gemm/rows.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

enum class Lanes { queries, keys };

// One head of one sequence and its score parameters.
struct Head {
  const Problem& problem;
  std::int64_t b, h;
  Sequence sequence;
  SplitScale scale;    // the operands of QK^T take two of the factors
  float slope;         // ALiBi slope
  bool has_score_mod;  // more than a positive factor: apply_score_mod runs
  float exponent;      // weights are exp2(exponent * score difference)
  double score_scale;  // the softmax reads scores times this
  float sink;          // logit of the sink, or -infinity

  ROCFLASH_INLINE Head(const Problem& p, std::int64_t batch, std::int64_t head)
      : problem(p),
        b(batch),
        h(head),
        sequence(p.lengths.sequence(batch)),
        scale(split_scale(p.scale)) {
    slope = p.alibi ? static_cast<float>(p.alibi.at(b, h)) : 0.0f;
    has_score_mod = p.softcap > 0 || p.alibi || p.bias || p.mask || p.sinks || p.scale <= 0;
    constexpr double log2_e_exact = 1.4426950408889634;
    score_scale = has_score_mod ? 1.0 : static_cast<double>(scale.rest);
    exponent = static_cast<float>(score_scale * log2_e_exact);
    sink = p.sinks ? static_cast<float>(p.sinks.at(0, h)) : -infinity;
  }

  // From the running max and the sum of weights relative to it.
  ROCFLASH_INLINE float lse(float highest, float sum) const {
    if (sum == 0) return infinity;  // fully masked row
    return static_cast<float>(static_cast<double>(highest) * score_scale +
                              __builtin_log(static_cast<double>(sum)));
  }
  // NaN if the sink makes all results NaN, else 0.
  ROCFLASH_INLINE float sink_nan() const { return sink == -infinity ? 0.0f : sink - sink; }
  ROCFLASH_INLINE Range visible(std::int64_t query) const {
    return visible_keys(problem.visibility, query, sequence.sq, sequence.sk);
  }
  ROCFLASH_INLINE RowBlock queries_of(const Rows& rows, Range r) const {
    return {rows, b, sequence.q_row + r.begin, h, static_cast<int>(r.size())};
  }
  ROCFLASH_INLINE RowBlock keys_of(const Rows& rows, Range r) const {
    return {rows, b, sequence.k_row + r.begin, problem.kv_head(h), static_cast<int>(r.size())};
  }
  ROCFLASH_INLINE RowBlock keys(Range r) const { return scaled(problem.k, problem.k_descale, r); }
  ROCFLASH_INLINE RowBlock values(Range r) const { return scaled(problem.v, problem.v_descale, r); }

 private:
  ROCFLASH_INLINE RowBlock scaled(const Rows& rows, const Descale& descale, Range r) const {
    RowBlock block = keys_of(rows, r);
    return {rows, block.batch, block.begin, block.head, block.count, &descale};
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

// The bias of a head plus its mask (as 0 or -inf); either may be absent.
template <class Element>
struct BiasRows {
  const Element* bias;
  const std::uint8_t* mask;
  std::int64_t bias_query, bias_key, mask_query, mask_key;  // strides

  ROCFLASH_INLINE BiasRows(const Head& head, const Element* of_head)
      : bias(of_head),
        mask(reinterpret_cast<const std::uint8_t*>(head.problem.mask.row(head.b, head.h, 0))),
        bias_query(head.problem.bias.query_stride),
        bias_key(head.problem.bias.key_stride),
        mask_query(head.problem.mask.query_stride),
        mask_key(head.problem.mask.key_stride) {}

  // Whether keys are contiguous.
  ROCFLASH_INLINE bool dense() const {
    return (!bias || bias_key == 1) && (!mask || mask_key == 1);
  }
  // A vector for the query and keys from `key` on; requires contiguous keys.
  ROCFLASH_INLINE Float whole(std::int64_t query, std::int64_t key) const {
    using Byte = std::uint8_t __attribute__((vector_size(width)));
    Float sum{};
    if (bias) sum = load_vector(bias + query * bias_query + key);
    if (mask) {
      const Int visible_range =
          __builtin_convertvector(load_as<Byte>(mask + query * mask_query + key), Int);
      sum = select(visible_range == 0, splat(-infinity), sum);
    }
    return sum;
  }
  // For one key and any strides.
  ROCFLASH_INLINE float one(std::int64_t query, std::int64_t key) const {
    if (mask && mask[query * mask_query + key * mask_key] == 0) return -infinity;
    return bias ? load_scalar(bias + query * bias_query + key * bias_key) : 0.0f;
  }
};

// bias + mask of a tile in the layout of the scores. Lanes past the last query are undefined.
template <Lanes lanes>
[[gnu::noinline]] static void load_bias(const Head& head, const Tile& tile, std::int64_t panel,
                                        float* to) {
  const std::int64_t query_step = lanes == Lanes::queries ? 1 : panel;
  const std::int64_t key_step = lanes == Lanes::queries ? panel : 1;
  const PerScore& numbers = head.problem.bias;
  const std::int64_t queries = tile.queries.size(), keys = tile.keys.size();
  with_elements(numbers.dtype, numbers.row(head.b, head.h, 0), [&](const auto* of_head) {
    const BiasRows rows(head, of_head);
    const std::int64_t whole = rows.dense() ? keys / width * width : 0;
    for (std::int64_t j = whole; j < keys; ++j) {
      for (std::int64_t i = 0; i < queries; ++i)
        to[i * query_step + j * key_step] = rows.one(tile.queries.begin + i, tile.keys.begin + j);
    }
    constexpr int at_once = lanes == Lanes::queries ? width : 1;
    for (std::int64_t i = 0; i < queries; i += at_once) {
      for (std::int64_t j = 0; j < whole; j += width) {
        Float square[at_once];
        for (int n = 0; n < at_once; ++n)
          square[n] =
              rows.whole(tile.queries.begin + smaller(i + n, queries - 1), tile.keys.begin + j);
        if constexpr (lanes == Lanes::queries) transpose(square);
        for (int n = 0; n < at_once; ++n)
          store(to + (lanes == Lanes::queries ? (j + n) * panel + i : i * panel + j), square[n]);
      }
    }
  });
}

// Scale, softcap, ALiBi, bias and mask. `bias` is scratch for a tile. `slopes`, if not null,
// receives d(score) / d(scale * q.k).
template <Lanes lanes, int vectors>
[[gnu::noinline]] static void apply_score_mod(const Head& head, const Tile& tile, float* scores,
                                              float* bias, float* slopes) {
  constexpr int panel = vectors * width;
  const Problem& p = head.problem;
  // Local copies: stores to scores might alias the originals.
  const float scale = head.scale.rest, softcap = p.softcap, slope = head.slope;
  const double in_cap = softcap > 0 ? static_cast<double>(scale) / static_cast<double>(softcap) : 0;
  constexpr double most = 0x1.fffffep127;  // 0 times infinity would be NaN
  const auto scale_in_cap = static_cast<float>(in_cap > most    ? most
                                               : in_cap < -most ? -most
                                                                : in_cap);
  const bool has_bias = p.bias || p.mask;
  if (has_bias) load_bias<lanes>(head, tile, panel, bias);
  // |query position - key| of lane and streamed row, for ALiBi.
  const auto corner = static_cast<float>(tile.queries.begin + head.sequence.sk - head.sequence.sq -
                                         tile.keys.begin);
  const float lane_sign = lanes == Lanes::queries ? 1.0f : -1.0f;
  const Float index = to_float(lane_index());
  const std::int64_t rows = streamed<lanes>(tile).size();
  for (std::int64_t r = 0; r < rows; ++r) {
    const float distance_here = corner - lane_sign * static_cast<float>(r);
    for (int m = 0; m < vectors; ++m) {
      float* at = scores + r * panel + m * width;
      Float s = load(at);
      if (softcap > 0) {
        const Tanh t = tanh(s * scale_in_cap, s * scale, softcap);
        if (slopes) store(slopes + r * panel + m * width, 1.0f - t.value * t.value);
        s = t.capped;
      } else {
        s = s * scale;
      }
      if (slope != 0) {
        const Float distance = distance_here + lane_sign * (index + static_cast<float>(m * width));
        s -= slope * absolute(distance);
      }
      if (has_bias) {
        // A bias of -inf masks the key, whatever its score.
        const Float b = load(bias + r * panel + m * width);
        s = select(b == -infinity, b, s + b);
      }
      store(at, s);
    }
  }
}

// Overwrites the lanes not set in `mask`. Without the barrier the compiler emits a masked store,
// which AMD CPUs execute lane by lane in AVX2.
ROCFLASH_INLINE void blend_lanes(float* at, Int mask, float other) {
  store(at, select(mask, opaque(load(at)), splat(other)));
}

// Mask bounds of consecutive queries, one per lane, relative to `first_key`.
struct VisibleKeys {
  Int begin, end;

  ROCFLASH_INLINE VisibleKeys(const Head& head, std::int64_t query, std::int64_t first_key) {
    constexpr std::int64_t far = 1 << 30;
    const auto from_first = [&](std::int64_t key) {
      return static_cast<std::int32_t>(smaller(larger(key - first_key, -far), far));
    };
    const Visibility& v = head.problem.visibility;
    if (v.chunk > 0) {
      for (int n = 0; n < width; ++n) {
        const Range visible_range = head.visible(query + n);
        begin[n] = from_first(visible_range.begin);
        end[n] = from_first(visible_range.end);
      }
      return;
    }
    // Bounds advance by one key per query; tiles never exceed the sequence.
    const std::int64_t position = query + head.sequence.sk - head.sequence.sq;
    begin = v.left >= 0 ? lane_index() + from_first(position - v.left)
                        : splat(static_cast<std::int32_t>(-far));
    end = v.right >= 0 ? lane_index() + from_first(position + v.right + 1)
                       : splat(static_cast<std::int32_t>(far));
  }
};

// Masks scores outside the visible range with -inf. Only tiles on the mask's boundary need it.
template <Lanes lanes, int vectors>
[[gnu::noinline]] static void apply_mask(const Head& head, const Tile& tile, float* scores) {
  constexpr int panel = vectors * width;
  if constexpr (lanes == Lanes::queries) {
    const auto keys = static_cast<std::int32_t>(tile.keys.size());
    for (int m = 0; m < panel; m += width) {
      const VisibleKeys visible_range(head, tile.queries.begin + m, tile.keys.begin);
      for (std::int32_t r = 0; r < keys; ++r)
        blend_lanes(scores + r * panel + m, (r >= visible_range.begin) & (r < visible_range.end),
                    -infinity);
    }
  } else {
    const std::int64_t queries = tile.queries.size();
    for (std::int64_t r = 0; r < queries; r += width) {
      const VisibleKeys visible_range(head, tile.queries.begin + r, tile.keys.begin);
      for (int n = 0; n < width && r + n < queries; ++n) {
        for (int m = 0; m < panel; m += width) {
          const Int key = lane_index() + m;
          blend_lanes(scores + (r + n) * panel + m,
                      (key >= visible_range.begin[n]) & (key < visible_range.end[n]), -infinity);
        }
      }
    }
  }
}

template <Lanes lanes, int vectors>
ROCFLASH_INLINE void finish_scores(const Head& head, const Tile& tile, float* scores, float* bias,
                                   float* slopes) {
  if (head.has_score_mod) apply_score_mod<lanes, vectors>(head, tile, scores, bias, slopes);
  if (!head.problem.visibility.bounded()) return;
  const Range common =
      common_keys(head.problem.visibility, tile.queries, head.sequence.sq, head.sequence.sk);
  if (tile.keys.begin < common.begin || tile.keys.end > common.end)
    apply_mask<lanes, vectors>(head, tile, scores);
}

// Philox round keys.
struct PhiloxKeys {
  std::uint32_t round[philox_rounds][2];

  ROCFLASH_INLINE explicit PhiloxKeys(PhiloxKey key) {
    for (auto& k : round) {
      k[0] = key.word[0];
      k[1] = key.word[1];
      key.word[0] += philox_weyl_0;
      key.word[1] += philox_weyl_1;
    }
  }
};

// Philox words of a vector of calls, each for eight keys of a query. Even and odd lanes are
// computed separately in the lower halves of 64-bit lanes: the upper half of a product is then a
// shift away, its lower half stays in place, and the bits above are ignored.
ROCFLASH_INLINE void philox_words(const Head& head, const PhiloxKeys& keys, Word group, Word query,
                                  Word (&words)[4]) {
  constexpr std::uint64_t lower = 0xffffffffu;
  const auto bh = static_cast<std::uint32_t>(head.b * head.problem.heads + head.h);
  const auto offset = static_cast<std::uint32_t>(head.problem.dropout.offset);
  const Wide zero{};
  Wide c[2][4] = {{(Wide)group, (Wide)query, zero + bh, zero + offset},
                  {(Wide)group >> 32, (Wide)query >> 32, zero + bh, zero + offset}};
  for (const auto& key : keys.round) {
    for (auto& half : c) {
      const Wide a = (half[0] & lower) * philox_multiplier_0;
      const Wide b = (half[2] & lower) * philox_multiplier_1;
      half[0] = (b >> 32) ^ half[1] ^ key[0];
      half[1] = b;
      half[2] = (a >> 32) ^ half[3] ^ key[1];
      half[3] = a;
    }
  }
  for (int n = 0; n < 4; ++n) words[n] = (Word)((c[0][n] & lower) | (c[1][n] << 32));
}

// Transposes each 4x4 block of lanes of four rows.
ROCFLASH_INLINE void transpose_quads(Word (&rows)[4]) {
  constexpr std::make_integer_sequence<int, width> lanes;
  exchange<2>(rows[0], rows[2], lanes);
  exchange<2>(rows[1], rows[3], lanes);
  exchange<1>(rows[0], rows[1], lanes);
  exchange<1>(rows[2], rows[3], lanes);
}

// 1 where dropout keeps the weight, else 0. tile.keys must begin at a multiple of eight.
template <Lanes lanes, int vectors>
[[gnu::noinline]] static void dropout_mask(const Head& head, const Tile& tile, float* keep) {
  constexpr int panel = vectors * width;
  const Dropout& d = head.problem.dropout;
  const PhiloxKeys round_keys(d.key());
  const auto threshold = static_cast<std::int32_t>(d.threshold);
  const auto kept = [&](Word bits) { return select((Int)bits < threshold, splat(1.0f), Float{}); };
  const auto first_call = static_cast<std::uint32_t>(tile.keys.begin / dropout_keys_per_call);
  const auto first_query = static_cast<std::uint32_t>(tile.queries.begin);
  Word words[4];
  if constexpr (lanes == Lanes::queries) {
    const std::int64_t keys = tile.keys.size();
    for (std::int64_t j = 0; j < keys; j += dropout_keys_per_call) {
      const auto group = static_cast<std::uint32_t>(j / dropout_keys_per_call);
      for (int m = 0; m < panel; m += width) {
        const Word query = (Word)lane_index() + (first_query + static_cast<std::uint32_t>(m));
        philox_words(head, round_keys, splat(first_call + group), query, words);
        for (int slot = 0; slot < dropout_keys_per_call && j + slot < keys; ++slot) {
          const Word pair = words[slot / 2];
          store(keep + (j + slot) * panel + m, kept(slot % 2 == 0 ? pair & 0xffffu : pair >> 16));
        }
      }
    }
  } else {
    // A row of the panel takes `groups` Philox calls, so a vector of calls serves several rows, or
    // a row takes several vectors. Calls are assigned to lanes so that transposing 4x4 blocks puts
    // the bits of call n at position n.
    constexpr int groups = (panel + dropout_keys_per_call - 1) / dropout_keys_per_call;
    constexpr int rows_at_once = groups < width ? width / groups : 1;
    Word row, group;
    for (int lane = 0; lane < width; ++lane) {
      const int call = lane % 4 * (width / 4) + lane / 4;
      row[lane] = static_cast<std::uint32_t>(groups < width ? call / groups : 0);
      group[lane] = static_cast<std::uint32_t>(groups < width ? call % groups : call);
    }
    const std::int64_t queries = tile.queries.size();
    for (std::int64_t i = 0; i < queries; i += rows_at_once) {
      for (int g = 0; g < groups; g += width) {
        philox_words(head, round_keys, group + (first_call + static_cast<std::uint32_t>(g)),
                     row + (first_query + static_cast<std::uint32_t>(i)), words);
        std::uint16_t bits[width * dropout_keys_per_call];
        transpose_quads(words);
        __builtin_memcpy(bits, words, sizeof bits);
        for (int n = 0; n < rows_at_once && i + n < queries; ++n) {
          float* to = keep + (i + n) * panel + g * dropout_keys_per_call;
          const int end = panel - g * dropout_keys_per_call;
          for (int m = 0; m < width * dropout_keys_per_call && m < end; m += width)
            store(to + m,
                  kept(__builtin_convertvector(
                      load_as<Short>(bits + n * groups * dropout_keys_per_call + m), Word)));
        }
      }
    }
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
