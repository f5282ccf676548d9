// The softmax of one query, tile by tile of its keys. Scores, times `unit`, are exponents.
//
// Weights are relative to a reference that follows the largest score lazily. As long as no weight
// exceeds 2^8, sums and outputs need no rescaling, and 2^8 loses no accuracy in f32 sums nor in f16 or
// bf16 weights.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "core/dtype.hpp"

namespace rocflash::kernel {

inline constexpr float infinity = __builtin_inff();
inline constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.69314718055994530942f;

// What scores count. Matrix kernels of 16-bit numbers take exponents of two; those of f32 take natural
// ones, and subtract the reference before they multiply: a large score times log2(e) would lose bits
// that f32 attention has.
struct PowersOfTwo {
  static constexpr float of_natural = log2_e;
  static constexpr bool precise = false;  // what else is computed from scores
  static float exp(float x) { return arch::exp2(x); }
  static float fine_exp(float x) { return arch::exp2(x); }
  static float reciprocal(float x) { return arch::reciprocal(x); }
  static float lse(float reference, float total) { return (reference + arch::log2(total)) * ln_2; }
};
struct NaturalPowers {
  static constexpr float of_natural = 1;
  static constexpr bool precise = true;
  static float exp(float x) { return arch::exp2(x * log2_e); }
  // For backward, whose exponents are larger than forward's by an lse: what x * log2(e) loses in
  // rounding is multiplied in afterwards.
  static float fine_exp(float x) {
    constexpr float log2_e_rest = 1.925963033500e-8f;
    const float high = x * log2_e, power = arch::exp2(high);
    const float low = __builtin_fmaf(x, log2_e_rest, __builtin_fmaf(x, log2_e, -high));
    return __builtin_fabsf(high) < 256 ? __builtin_fmaf(power, low * ln_2, power) : power;
  }
  static float reciprocal(float x) { return arch::reciprocal(x); }
  // The exponent apart: the logarithm of what is left, between 3/4 and 3/2, has a small error, that of a large
  // number one in proportion.
  static float lse(float reference, float total) {
    if (total - total != 0) return reference + total;
    const auto bits = __builtin_bit_cast(std::int32_t, total);
    const std::int32_t exponent = (bits - 0x3f400000) >> 23;
    const float rest = arch::log2(__builtin_bit_cast(float, bits - (exponent << 23)));
    const float nearly = __builtin_fmaf(static_cast<float>(exponent), ln_2, reference);
    return __builtin_fmaf(rest, ln_2, nearly);
  }
};

// What scores count for kernels of a dtype.
template <DType dtype>
struct UnitOf {
  using Type = PowersOfTwo;
};
template <>
struct UnitOf<DType::f32> {
  using Type = NaturalPowers;
};

template <class Unit>
struct SoftmaxOf {
  static constexpr float slack = 8;

  float reference = -infinity;
  float sum = 0;  // of the weights that this lane has seen

  // True for any score where the reference is still -infinity.
  bool behind(float largest) const { return largest > reference + slack; }
  // Rescales the sum, and returns the factor by which the outputs so far must be multiplied.
  float follow(float largest) {
    const float before = reference;
    if (largest > reference) reference = largest;
    const float factor = before == -infinity ? 0.0f : Unit::exp(before - reference);
    sum *= factor;
    return factor;
  }
  // What to subtract from a score; 0 for a query that has seen no key yet.
  float base() const { return reference == -infinity ? 0.0f : reference; }
};
using OnlineSoftmax = SoftmaxOf<PowersOfTwo>;

// What turns sums into results after the last key.
struct Normaliser {
  float factor;  // of the outputs
  float lse;
};

// `total` is the sum of the weights relative to `reference`; the sink is one more of them, in
// natural units. One of +infinity or NaN makes everything NaN.
template <class Unit = PowersOfTwo>
Normaliser normalise(float reference, float total, bool has_sink, float sink) {
  float factor = 1;
  if (has_sink && sink != -infinity) {
    const float logit = sink * Unit::of_natural;
    const float larger = logit > reference ? logit : reference;
    factor = reference == -infinity ? 0.0f : Unit::exp(reference - larger);
    total = total * factor + Unit::exp(logit - larger);
    reference = larger;
  }
  if (total == 0) return {0, infinity};
  return {factor * Unit::reciprocal(total), Unit::lse(reference, total)};
}

}  // namespace rocflash::kernel
