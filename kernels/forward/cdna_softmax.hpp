// Online softmax of the CDNA ping-pong schedule: no row max per tile, and exponentials paced to
// co-issue with the MFMAs of the partner wave.
#pragma once

#include "attention/online_softmax.hpp"
#include "forward/amd_common.hpp"

namespace rocflash::kernel {

// Online softmax that takes no row max as long as the row sum of a tile stays in range. A sum above
// the limit shows that a score exceeds the running max by too much. Only then is the row max taken,
// the accumulators are rescaled, and the tile's exponentials are computed again.
struct DeferredMaxSoftmax : OnlineSoftmax {
  // Largest row sum of a tile without rescale: 2^rescale_threshold, exact in f32, f16 and bf16.
  static constexpr float max_tile_sum = 256;
  // Below every sum: while the running max is −∞, each tile takes the row max.
  static constexpr float always_rescale = -1;

  float base_ = 0;
  float limit_ = always_rescale;

  bool fits(float sum) const { return sum <= limit_; }
  float rescale(float largest) {
    const float factor = OnlineSoftmax::rescale(largest);
    base_ = OnlineSoftmax::base();
    limit_ = row_max == -infinity ? always_rescale : max_tile_sum;
    return factor;
  }
};

// p = exp2(scores · scale_log2 − base) of one tile, as MFMA fragments; returns the lane's row sum.
// One exponential and three other VALU instructions are issued per group, because that is what fits
// in the shadow of one MFMA of gfx942. Packed VALU instructions do not co-issue with an MFMA.
template <DType dtype, class Scores, class Fragments>
float exp2_and_row_sum(const Scores& scores, float scale_log2, float base, Fragments& p) {
  const float (&s)[Scores::per_column] = scores.at[0];
  // Exponentials whose unpacked bits are live at a time: bounds the register pressure.
  constexpr int batch = 16;
  constexpr int count = Scores::per_column;
  float sum = 0;
  float exponent = __builtin_fmaf(s[0], scale_log2, -base);
  ROCFLASH_UNROLL
  for (int first = 0; first < count; first += batch) {
    std::uint32_t bits[batch];
    float weight = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < batch; ++n) {
      // Software-pipelined by one: the sum takes the previous exponential, whose latency is over.
      const float previous = weight;
      weight = arch::exp2(exponent);
      if (first + n + 1 < count) exponent = __builtin_fmaf(s[first + n + 1], scale_log2, -base);
      if (n > 0) {
        sum += previous;
        bits[n - 1] = weight_bits<dtype>(previous);
      }
      arch::sched_barrier();
    }
    sum += weight;
    bits[batch - 1] = weight_bits<dtype>(weight);
    ROCFLASH_UNROLL
    for (int n = 0; n < batch; n += 2) {
      const int word = (first + n) / 2;
      p.step_[word / 4][word % 4] = joined_weights<dtype>(bits[n], bits[n + 1]);
    }
  }
  return sum;
}

}  // namespace rocflash::kernel
