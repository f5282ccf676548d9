// Which keys a query sees, and how its scores are shaped: shared by all schedules and by the kernels
// that compute scores one by one.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

// One query of a sequence and the keys that it sees by its position.
struct QueryView {
  std::int32_t index = 0;           // in its sequence
  std::int32_t begin = 0, end = 0;  // keys; none for rows that are not in use

  QueryView() = default;
  QueryView(const Visibility& v, const SequenceView& s, std::int32_t i) : index(i) {
    if (i >= s.sq) return;
    const Range keys = visible_keys(v, i, s.sq, s.sk);
    begin = static_cast<std::int32_t>(keys.begin);
    end = static_cast<std::int32_t>(larger(keys.begin, keys.end));
  }
  bool sees(std::int32_t key) const {
    return static_cast<std::uint32_t>(key - begin) < static_cast<std::uint32_t>(end - begin);
  }
};

// Part of the keys. (Range has 64 bits, which are two registers and more instructions.)
struct Span {
  std::int32_t begin = 0, end = 0;
  Span() = default;
  Span(Range r)
      : begin(static_cast<std::int32_t>(r.begin)), end(static_cast<std::int32_t>(r.end)) {}
};

// The keys that at least one of some queries sees, and those that all of them see: `count` queries
// from `first` on, of which those in use count.
struct SeenKeys {
  Range by_any, by_all;

  SeenKeys(const Visibility& v, const SequenceView& s, std::int32_t first, std::int32_t count)
      : SeenKeys(v, s, Range{first, smaller(first + count, s.sq)}) {}

 private:
  SeenKeys(const Visibility& v, const SequenceView& s, Range queries)
      : by_any(queries.empty() ? Range{} : s.keys_of(v, queries)),
        by_all(queries.empty() ? Range{} : s.keys_of_all(v, queries)) {}
};

// Tiles of keys start on multiples of this many, which share one draw of dropout's bits.
inline constexpr int dropout_keys = 8;

// Where the scale is negative the sign of q is changed before the product, so that the largest product
// is the largest score and what remains of the scale is positive. (The plan gives a scale of 0 to the
// full variant, which applies it before it hides keys.)
template <class Unit>
struct ScaleOf {
  float unit;      // from products to exponents
  bool turn_sign;  // of q
  explicit ScaleOf(float scale)
      : unit(__builtin_fabsf(scale) * Unit::of_natural), turn_sign(scale < 0) {}
};
using Scale = ScaleOf<PowersOfTwo>;

// tanh to a few units of the last place, also where it is small, and its derivative.
struct Tanh {
  float value, slope;

  explicit Tanh(float x) {
    const float z = x * x, size = __builtin_fabsf(x);
    float q = 2.1227455673e-3f;
    q = __builtin_fmaf(q, z, -8.1562801964e-3f);
    q = __builtin_fmaf(q, z, 2.16926069656e-2f);
    q = __builtin_fmaf(q, z, -5.39453783872e-2f);
    q = __builtin_fmaf(q, z, 1.33331959113e-1f);
    q = __builtin_fmaf(q, z, -3.33333305714e-1f);
    const float near = __builtin_fmaf(x * z, q, x);
    const float r = arch::reciprocal(1 + arch::exp2(size * (2 * log2_e)));
    const bool small = size < 0.6f;
    value = small ? near : __builtin_copysignf(1 - 2 * r, x);
    slope = small ? 1 - near * near : 4 * r * (1 - r);
  }
};

// For those who do not ask for the slopes of a softcap.
struct NoSlopes {
  void operator()(int, float) const {}
};

// Options of the full variant for one (sequence, head). They turn products into exponents.
class ScoreShape {
 public:
  ScoreShape(const Problem& p, const SequenceView& s, std::int64_t head)
      : problem_(p), sequence_(s), head_(head), plane_(s.batch * p.heads + head) {
    if (p.alibi)
      alibi_ = arch::load(reinterpret_cast<const float*>(p.alibi.data) +
                          s.batch * p.alibi.batch_stride + head * p.alibi.head_stride);
  }

  // count scores of one query; at(n) refers to score n, key(n) is its key.
  template <int count, class Unit = PowersOfTwo, class At, class Key>
  void shape(const QueryView& query, At at, Key key) const {
    shape<count, Unit>(query, at, key, __builtin_fabsf(arch::again(problem_).scale));
  }
  // The same with what is left of the scale. With a softcap, slope(n, x) is told how fast each score
  // grows with its product.
  template <int count, class Unit = PowersOfTwo, class At, class Key, class Slope = NoSlopes>
  void shape(const QueryView& query, At at, Key key, float scale, Slope slope = {}) const {
    // Loaded again for each tile: the strides of all options together are more than the scalar
    // registers hold.
    const Problem& p = arch::again(problem_);
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) at(n) *= scale;
    if (Unit::precise && p.softcap > 0) {
      const float sharpness = __builtin_fminf(1 / p.softcap, 0x1.fffffep127f);
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        const Tanh capped(at(n) * sharpness);
        at(n) = p.softcap * capped.value;
        slope(n, capped.slope);
      }
    } else if (p.softcap > 0) {
      // 0 times infinity would be NaN.
      const float sharpness = __builtin_fminf(2 * log2_e / p.softcap, 0x1.fffffep127f);
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n)
        at(n) = p.softcap - 2 * p.softcap * arch::reciprocal(1 + arch::exp2(at(n) * sharpness));
    }
    if (p.alibi) {
      const std::int32_t place = query.index + sequence_.sk - sequence_.sq;
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        const std::int32_t distance = place - key(n);
        at(n) -= alibi_ * static_cast<float>(distance < 0 ? -distance : distance);
      }
    }
    if (p.bias) {
      const std::byte* row = row_of(p.bias, query);
      if (p.bias.dtype == DType::f32) {
        add_bias<count>(reinterpret_cast<const float*>(row), p.bias, at, key,
                        [](float x) { return x; });
      } else if (p.bias.dtype == DType::f16) {
        add_bias<count>(reinterpret_cast<const std::uint16_t*>(row), p.bias, at, key,
                        widen<DType::f16>);
      } else {
        add_bias<count>(reinterpret_cast<const std::uint16_t*>(row), p.bias, at, key,
                        widen<DType::bf16>);
      }
    }
    if (p.mask) {
      const auto* row = reinterpret_cast<const std::uint8_t*>(row_of(p.mask, query));
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        if (arch::load(row + column_of(key(n)) * p.mask.key_stride) == 0) at(n) = -infinity;
      }
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) at(n) *= Unit::of_natural;
  }

  // Sets weights that dropout drops to 0. From each multiple of `run` on, so many keys share one draw.
  template <int count, int run, class At, class Key>
  void drop(const QueryView& query, At at, Key key) const {
    ROCFLASH_UNROLL
    for (int first = 0; first < count; first += run) {
      const PhiloxCounter words = problem_.dropout.bits(plane_, query.index, key(first));
      ROCFLASH_UNROLL
      for (int n = first; n < first + run; ++n) {
        if (!keeps(words, key(n))) at(n) = 0;
      }
    }
  }
  // One bit per key, set where dropout keeps it, for eight keys from `first`, a multiple of eight.
  std::uint32_t kept(const QueryView& query, std::int32_t first) const {
    const PhiloxCounter words = problem_.dropout.bits(plane_, query.index, first);
    const std::uint32_t threshold = problem_.dropout.threshold;
    std::uint32_t bits = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      bits |= std::uint32_t{(words.word[n] & 0xffffu) < threshold} << 2 * n;
      bits |= std::uint32_t{words.word[n] >> 16 < threshold} << (2 * n + 1);
    }
    return bits;
  }
  bool keeps(const QueryView& query, std::int32_t key) const {
    return keeps(problem_.dropout.bits(plane_, query.index, key), key);
  }

 private:
  bool keeps(const PhiloxCounter& words, std::int32_t key) const {
    const std::uint32_t low = key & 2 ? words.word[1] : words.word[0],
                        high = key & 2 ? words.word[3] : words.word[2];
    const std::uint32_t pair = key & 4 ? high : low;
    return (key & 1 ? pair >> 16 : pair & 0xffffu) < problem_.dropout.threshold;
  }

  // Rows and keys that are not in use have no element. They read the last one, and do not use it.
  std::int64_t column_of(std::int32_t key) const {
    return key < sequence_.sk ? key : sequence_.sk - 1;
  }
  const std::byte* row_of(const PerScore& numbers, const QueryView& query) const {
    return numbers.row(sequence_.batch, head_,
                       query.index < sequence_.sq ? query.index : sequence_.sq - 1);
  }
  template <int count, class Number, class At, class Key, class Widen>
  void add_bias(const Number* row, const PerScore& numbers, At at, Key key, Widen widened) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      // -infinity hides the key, whatever its score.
      const float bias = widened(arch::load(row + column_of(key(n)) * numbers.key_stride));
      at(n) = bias == -infinity ? bias : at(n) + bias;
    }
  }

  const Problem& problem_;
  const SequenceView& sequence_;
  std::int64_t head_, plane_;
  float alibi_ = 0;
};

inline float sink_of(const Problem& p, std::int64_t head) {
  const std::int64_t index = head * p.sinks.head_stride;
  if (p.sinks.dtype == DType::f32)
    return arch::load(reinterpret_cast<const float*>(p.sinks.data) + index);
  const std::uint16_t bits =
      arch::load(reinterpret_cast<const std::uint16_t*>(p.sinks.data) + index);
  return p.sinks.dtype == DType::f16 ? widen<DType::f16>(bits) : widen<DType::bf16>(bits);
}

}  // namespace rocflash::kernel
