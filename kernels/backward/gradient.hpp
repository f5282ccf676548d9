// What backward knows of one score: its weight, and how the loss changes with it. Shared by kernels that
// own queries, by those that own keys, on all GPUs.
//
//   weight    p = exp(score - lse), in powers of two or, for f32, natural ones
//   gradient  ds = p · (dp - delta) · slope,  dp = dout·v of the key, delta = dout·out of the query,
//                                             slope = d(score) / d(scale q·k), 1 without a softcap
//
// Dropout's scale is left out of all of it and multiplied to the sums at the end: dp counts where the
// weight is kept, and delta was divided by the scale.
#pragma once

#include <cstdint>

#include "attention/score.hpp"
#include "backward/statistic.hpp"

namespace rocflash::kernel {

// One key of a sequence and the queries that see it by its position. They are one interval too.
struct KeyView {
  std::int32_t index = 0;           // in its sequence
  std::int32_t begin = 0, end = 0;  // queries; none for keys that are not in use

  KeyView() = default;
  KeyView(const Visibility& v, const SequenceView& s, std::int32_t j) : index(j) {
    if (j >= s.sk || s.sq == 0) return;
    const Range queries = seeing_queries(v, {j, j + 1}, s.sq, s.sk);
    begin = static_cast<std::int32_t>(queries.begin);
    end = static_cast<std::int32_t>(larger(queries.begin, queries.end));
  }
  bool seen_by(std::int32_t query) const {
    return static_cast<std::uint32_t>(query - begin) < static_cast<std::uint32_t>(end - begin);
  }
};

// The queries that see at least one of some keys, and those that see all of them: `count` keys from
// `first` on, of which those in use count.
struct SeeingQueries {
  Range any, all;

  SeeingQueries(const Visibility& v, const SequenceView& s, std::int32_t first,
                std::int32_t count) {
    const Range keys{first, smaller(first + count, s.sk)};
    if (keys.empty() || s.sq == 0) return;
    const auto seeing = [&](std::int64_t begin, std::int64_t end) {
      return seeing_queries(v, {begin, end}, s.sq, s.sk);
    };
    any = seeing(keys.begin, keys.end);
    all = {seeing(keys.end - 1, keys.end).begin, seeing(keys.begin, keys.begin + 1).end};
  }
};

// Options of the full variant for one (sequence, head). Unlike ScoreShape's, the scores of a lane may
// belong to several queries.
class GradientShape {
 public:
  GradientShape(const Problem& p, const SequenceView& s, std::int64_t head)
      : problem_(p), sequence_(s), head_(head), plane_(s.batch * p.heads + head) {
    if (p.alibi)
      alibi_ = statistic(arch::load(reinterpret_cast<const float*>(p.alibi.data) +
                                    s.batch * p.alibi.batch_stride + head * p.alibi.head_stride),
                         1);
  }

  // Turns count products into exponents: score(n) refers to number n, query(n) and key(n) are its own.
  // With a softcap, slope(n, x) is told each slope.
  template <int count, class Query, class Key, class Score, class Slope>
  void shape(Query query, Key key, Score score, Slope slope) const {
    shape<count>(query, key, score, slope, __builtin_fabsf(arch::again(problem_).scale));
  }
  // The same with what is left of the scale.
  template <int count, class Unit = PowersOfTwo, class Query, class Key, class Score, class Slope>
  void shape(Query query, Key key, Score score, Slope slope, float scale) const {
    // Loaded again for each tile, as ScoreShape does.
    const Problem& p = arch::again(problem_);
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) score(n) *= scale;
    if (Unit::precise && p.softcap > 0) {
      const float sharpness = __builtin_fminf(1 / p.softcap, 0x1.fffffep127f);
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        const Tanh capped(score(n) * sharpness);
        score(n) = p.softcap * capped.value;
        slope(n, capped.slope);
      }
    } else if (p.softcap > 0) {
      // 0 times infinity would be NaN.
      const float sharpness = __builtin_fminf(2 * log2_e / p.softcap, 0x1.fffffep127f);
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        const float r = arch::reciprocal(1 + arch::exp2(score(n) * sharpness));
        slope(n, 4 * r * (1 - r));
        score(n) = p.softcap - 2 * p.softcap * r;
      }
    }
    if (p.alibi) {
      const std::int32_t shift = sequence_.sk - sequence_.sq;
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        const std::int32_t distance = query(n) + shift - key(n);
        score(n) -= alibi_ * static_cast<float>(distance < 0 ? -distance : distance);
      }
    }
    if (p.bias) {
      if (p.bias.dtype == DType::f32) {
        add_bias<count, float>(p.bias, query, key, score, [](float x) { return statistic(x, 1); });
      } else if (p.bias.dtype == DType::f16) {
        add_bias<count, std::uint16_t>(p.bias, query, key, score, widen<DType::f16>);
      } else {
        add_bias<count, std::uint16_t>(p.bias, query, key, score, widen<DType::bf16>);
      }
    }
    if (p.mask) {
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        const auto* row = reinterpret_cast<const std::uint8_t*>(row_of(p.mask, query(n)));
        if (arch::load(row + column_of(key(n)) * p.mask.key_stride) == 0) score(n) = -infinity;
      }
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) score(n) *= Unit::of_natural;
  }

  // Dropout's draw for eight keys of a query from `first` on, a multiple of eight: one bit per key, set
  // where the weight is kept.
  std::uint32_t kept(std::int32_t query, std::int32_t first) const {
    const Dropout& dropout = arch::again(problem_).dropout;
    const PhiloxCounter words = dropout.bits(plane_, query, first);
    std::uint32_t bits = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      bits |= std::uint32_t{(words.word[n] & 0xffffu) < dropout.threshold} << 2 * n;
      bits |= std::uint32_t{words.word[n] >> 16 < dropout.threshold} << (2 * n + 1);
    }
    return bits;
  }
  bool keeps(std::int32_t query, std::int32_t key) const {
    return (kept(query, key / dropout_keys * dropout_keys) >> key % dropout_keys & 1) != 0;
  }

 private:
  // Rows and keys that are not in use have no element. They read the last one, and do not use it.
  std::int64_t column_of(std::int32_t key) const {
    return key < sequence_.sk ? key : sequence_.sk - 1;
  }
  const std::byte* row_of(const PerScore& numbers, std::int32_t query) const {
    return numbers.row(sequence_.batch, head_, query < sequence_.sq ? query : sequence_.sq - 1);
  }
  template <int count, class Number, class Query, class Key, class Score, class Widen>
  void add_bias(const PerScore& numbers, Query query, Key key, Score score, Widen widened) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      const auto* row = reinterpret_cast<const Number*>(row_of(numbers, query(n)));
      // -infinity hides the key, whatever its score.
      const float bias = widened(arch::load(row + column_of(key(n)) * numbers.key_stride));
      score(n) = bias == -infinity ? bias : score(n) + bias;
    }
  }

  const Problem& problem_;
  const SequenceView& sequence_;
  std::int64_t head_, plane_;
  float alibi_ = 0;
};

}  // namespace rocflash::kernel
