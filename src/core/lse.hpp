// The largest lse from which weights can be recomputed.
#pragma once

namespace rocflash::core {

// From here on f32 rounds an lse by 2^-11 or more, the relative rounding error of f16. Backward
// then recomputes the softmax denominator from the scores.
inline constexpr float unresolved_lse = 0x1p13f;

// Whether the scores of a backward call are all that forward's lse covers, given the lse that these
// scores have. A call of ring attention has the lse of the whole sequence and a block of its keys:
// the scores of the block give less, and the lse is all there is. More is a rounding error.
//
// Up to 2^20 f32 still resolves the logarithm of a denominator of several blocks. From there on the
// bound is as wide as scores may differ between forward and backward.
constexpr bool covers_lse(float of_scores, float lse) {
  const float size = lse < 0 ? -lse : lse;
  return of_scores >= lse - size * (size < 0x1p20f ? 0x1p-20f : 0x1p-12f);
}

}  // namespace rocflash::core
