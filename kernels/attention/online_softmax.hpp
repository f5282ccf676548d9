// Online softmax with lazy rescaling: the running max is updated only when the row max of a tile
// exceeds it by more than 2^8 in weight. Until then the row sum and O need no rescale. Weights up
// to 2^8 lose no accuracy in FP32 sums nor in f16 or bf16.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "core/dtype.hpp"

namespace rocflash::kernel {

inline constexpr float infinity = __builtin_inff();
inline constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.69314718055994530942f;

// Domains of the scores. Specialized 16-bit kernels fold log2(e) into the softmax scale and use
// exp2. f32 and generic kernels stay in the natural log domain and subtract the running max before
// the product with log2(e): a large score times log2(e) loses bits, and one beyond 2.3e38, such as
// a bias of finfo(bf16).min, overflows.
struct Log2Domain {
  static constexpr float from_natural = log2_e;
  static constexpr bool precise = false;  // softcap and ALiBi in full FP32 accuracy
  static float exp(float x) { return arch::exp2(x); }
  static float fine_exp(float x) { return arch::exp2(x); }
  static float reciprocal(float x) { return arch::reciprocal(x); }
  static float lse(float row_max, float total) { return (row_max + arch::log2(total)) * ln_2; }
};
struct NaturalLogDomain {
  static constexpr float from_natural = 1;
  static constexpr bool precise = true;
  static float exp(float x) { return arch::exp2(x * log2_e); }
  // Backward: exponents are larger than forward's by the LSE, so the rounding error of x * log2(e)
  // is compensated.
  static float fine_exp(float x) {
    constexpr float log2_e_rest = 1.925963033500e-8f;
    const float high = x * log2_e, power = arch::exp2(high);
    const float low = __builtin_fmaf(x, log2_e_rest, __builtin_fmaf(x, log2_e, -high));
    return __builtin_fabsf(high) < 256 ? __builtin_fmaf(power, low * ln_2, power) : power;
  }
  static float reciprocal(float x) { return arch::reciprocal(x); }
  // The exponent is handled separately: the logarithm of the significand, between 3/4 and 3/2, has
  // a small absolute error, whereas that of a large number has a proportional one.
  static float lse(float row_max, float total) {
    // NOLINTNEXTLINE(misc-redundant-expression): 0 unless total is infinite or NaN
    if (total - total != 0) return row_max + total;
    const auto bits = __builtin_bit_cast(std::int32_t, total);
    const std::int32_t exponent = (bits - 0x3f400000) >> 23;
    const float rest = arch::log2(__builtin_bit_cast(float, bits - (exponent << 23)));
    const float nearly = __builtin_fmaf(static_cast<float>(exponent), ln_2, row_max);
    return __builtin_fmaf(rest, ln_2, nearly);
  }
};

// Natural log domain of generic 16-bit kernels, as fast as Log2Domain: the factor log2(e) is
// applied to the difference of score and running max.
struct FastNaturalLogDomain {
  static constexpr float from_natural = 1;
  static constexpr bool precise = false;
  static float exp(float x) { return arch::exp2(x * log2_e); }
  static float fine_exp(float x) { return exp(x); }
  static float reciprocal(float x) { return arch::reciprocal(x); }
  static float lse(float row_max, float total) {
    return __builtin_fmaf(arch::log2(total), ln_2, row_max);
  }
};

// Domain of a dtype's specialized or generic kernels.
template <DType dtype, bool generic>
struct ScoreDomainOf {
  using Type = Log2Domain;
};
template <DType dtype>
struct ScoreDomainOf<dtype, true> {
  using Type = FastNaturalLogDomain;
};
template <>
struct ScoreDomainOf<DType::f32, false> {
  using Type = NaturalLogDomain;
};
template <>
struct ScoreDomainOf<DType::f32, true> {
  using Type = NaturalLogDomain;
};

template <class Unit>
struct BasicOnlineSoftmax {
  static constexpr float rescale_threshold = 8;

  float row_max = -infinity;
  float sum = 0;  // this lane's partial row sum

  // True for any score while the running max is -infinity.
  bool needs_rescale(float largest) const { return largest > row_max + rescale_threshold; }
  // Updates the running max, rescales the row sum, and returns the rescale factor of O.
  float rescale(float largest) {
    const float before = row_max;
    if (largest > row_max) row_max = largest;
    const float factor = before == -infinity ? 0.0f : Unit::exp(before - row_max);
    sum *= factor;
    return factor;
  }
  // What to subtract from a score; 0 while all keys were masked.
  float base() const { return row_max == -infinity ? 0.0f : row_max; }
};
using OnlineSoftmax = BasicOnlineSoftmax<Log2Domain>;
using GenericSoftmax = BasicOnlineSoftmax<FastNaturalLogDomain>;

// Whether rounding of the running max makes the weights of a row inaccurate. One FMA scales q·k and
// subtracts the rounded max; its error of half an ulp shifts all exponents. From 2^24 on this
// exceeds the accuracy of 16-bit dtypes.
inline bool shifts_exponents(float row_max) {
  return __builtin_fabsf(row_max) >= 0x1p24f && row_max != -infinity;
}

// Normalization in the epilogue.
struct Normalizer {
  float factor;  // of O: 1 / row sum
  float lse;
};

// `total` is the row sum relative to `row_max`. The sink is one more logit, in the natural log
// domain; a sink of +infinity or NaN makes the row NaN.
template <class Unit = Log2Domain>
Normalizer normalize(float row_max, float total, bool has_sink, float sink) {
  float factor = 1;
  if (has_sink && sink != -infinity) {
    const float logit = sink * Unit::from_natural;
    const float larger = logit > row_max ? logit : row_max;
    factor = row_max == -infinity ? 0.0f : Unit::exp(row_max - larger);
    total = total * factor + Unit::exp(logit - larger);
    row_max = larger;
  }
  if (total == 0) return {0, infinity};
  return {factor * Unit::reciprocal(total), Unit::lse(row_max, total)};
}

}  // namespace rocflash::kernel
