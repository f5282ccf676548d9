// Softcap: s becomes cap · tanh(s / cap).
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/modifiers/modifier.hpp"
#include "attention/online_softmax.hpp"

namespace rocflash::kernel {

// cap · tanh(s / cap) to a few ulp, and its derivative. The polynomial for small s / cap does not
// add and subtract the cap, so an infinite cap gives s itself.
struct Softcapped {
  float value, slope;

  // x is s / cap.
  Softcapped(float s, float cap, float x) {
    const float z = x * x, size = __builtin_fabsf(x);
    float q = 2.1227455673e-3f;
    q = __builtin_fmaf(q, z, -8.1562801964e-3f);
    q = __builtin_fmaf(q, z, 2.16926069656e-2f);
    q = __builtin_fmaf(q, z, -5.39453783872e-2f);
    q = __builtin_fmaf(q, z, 1.33331959113e-1f);
    q = __builtin_fmaf(q, z, -3.33333305714e-1f);
    const float near = __builtin_fmaf(s * z, q, s), near_tanh = __builtin_fmaf(x * z, q, x);
    const float r = arch::reciprocal(1 + arch::exp2(size * (2 * log2_e)));
    // Both sides are computed first, so that the compiler selects and does not branch.
    const float far = cap * __builtin_copysignf(1 - 2 * r, x);
    const float near_slope = 1 - near_tanh * near_tanh, far_slope = 4 * r * (1 - r);
    const bool small = size < 0.6f;
    value = small ? near : far;
    slope = small ? near_slope : far_slope;
  }
};

// Applies a cap to `count` scores; slope(n, x) receives the derivative of each.
template <class Unit, int count, class At, class Slope>
void apply_softcap(float cap, At at, Slope slope) {
  // cap - 2 cap / (1 + exp(2 s / cap)) has an error of one ulp of the cap, which is negligible for
  // 16-bit dtypes and small caps. The fmin avoids 0 · infinity = NaN.
  constexpr float most = 256, largest = 0x1.fffffep127f;
  if (!Unit::precise && cap <= most) {
    const float sharpness = __builtin_fminf(2 * log2_e / cap, largest);
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      const float r = arch::reciprocal(1 + arch::exp2(at(n) * sharpness));
      slope(n, 4 * r * (1 - r));
      at(n) = cap - 2 * cap * r;
    }
  } else {
    // 1 / cap of a cap near the end of f32's range is subnormal, which GPUs may flush: both sides
    // of the quotient are scaled down first.
    const float shrink = cap > 0x1p64f ? 0x1p-64f : 1.0f;
    const float sharpness = __builtin_fminf(1 / (cap * shrink), largest);
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      const Softcapped capped(at(n), cap, at(n) * shrink * sharpness);
      slope(n, capped.slope);
      at(n) = capped.value;
    }
  }
}

template <class Pass>
struct Softcap {
  static constexpr Feature feature = Feature::softcap;
  Softcap(const Problem&, const ScoreSlice&) {}

  template <class Unit, int count, class Query, class Key, class Score, class Slope>
  void apply(const Problem& p, const ScoreSlice&, Query, Key, Score score, Slope slope) const {
    apply_softcap<Unit, count>(p.softcap, score, slope);
  }
};

}  // namespace rocflash::kernel
