// Packed (varlen) tensors: sequences are concatenated along the row dimension.
#pragma once

#include <cstdint>

#include "core/inline.hpp"
#include "core/names.hpp"

namespace rocflash::core {

// The sequence that contains a row, or -1. Sequence b has rows [cu[b], cu[b + 1]).
ROCFLASH_INLINE std::int64_t sequence_of(const std::int32_t* cu, std::int64_t batch,
                                         std::int64_t row) {
  std::int64_t low = 0, high = batch;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (cu[middle] <= row ? low : high) = middle;
  }
  return batch > 0 && cu[low] <= row && row < cu[low + 1] ? low : -1;
}

}  // namespace rocflash::core
