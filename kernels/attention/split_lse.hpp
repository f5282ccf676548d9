// LSE of one split in two floats, for the combine kernel: a large LSE in f32 rounds log(row sum)
// away, and with it the weight of the split.
#pragma once

#include "arch/arch.hpp"
#include "attention/online_softmax.hpp"

namespace rocflash::kernel {

struct SplitLse {
  float lse, rest;  // unevaluated sum; the rest of an empty split is 0

  // `total` is the row sum relative to `row_max`; `lse` is the rounded LSE.
  static SplitLse of(float row_max, float total, float lse) {
    const bool counts = total > 0 && lse - lse == 0;
    return {lse, counts ? (row_max - lse) + arch::log2(total) * ln_2 : 0.0f};
  }
};

}  // namespace rocflash::kernel
