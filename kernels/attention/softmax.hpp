// The softmax of one query, key tile after key tile. Scores arrive times `unit` in powers of two.
//
// Weights are taken relative to a reference that follows the largest score lazily: as long as no
// score is more than 2^8 above it, sums and outputs need no rescaling, and 2^8 loses no accuracy in
// f32 sums nor in f16 or bf16 weights.
#pragma once

#include "arch/arch.hpp"

namespace rocflash::kernel {

inline constexpr float infinity = __builtin_inff();
inline constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.69314718055994530942f;

struct OnlineSoftmax {
  static constexpr float slack = 8;

  float reference = -infinity;
  float sum = 0;  // of the weights that this lane has seen

  // A reference of -infinity stays that with the slack: anything is above it.
  bool behind(float largest) const { return largest > reference + slack; }
  // Returns what sums and outputs so far must be multiplied with, having done so to the sum.
  float follow(float largest) {
    const float before = reference;
    if (largest > reference) reference = largest;
    const float factor = before == -infinity ? 0.0f : arch::exp2(before - reference);
    sum *= factor;
    return factor;
  }
  // What to subtract from a score: a query that has seen nothing yet has no reference.
  float base() const { return reference == -infinity ? 0.0f : reference; }
};

// What turns summed weights into results, once all keys have been seen.
struct Normaliser {
  float factor;  // of the outputs
  float lse;
};

// `total` is the sum of the weights relative to `reference`; the sink is one more of them, in
// natural units. One of +infinity or NaN makes everything NaN.
inline Normaliser normalise(float reference, float total, bool has_sink, float sink) {
  float factor = 1;
  if (has_sink && sink != -infinity) {
    const float logit = sink * log2_e;
    const float larger = logit > reference ? logit : reference;
    factor = reference == -infinity ? 0.0f : arch::exp2(reference - larger);
    total = total * factor + arch::exp2(logit - larger);
    reference = larger;
  }
  if (total == 0) return {0, infinity};
  return {factor * arch::reciprocal(total), (reference + arch::log2(total)) * ln_2};
}

}  // namespace rocflash::kernel
