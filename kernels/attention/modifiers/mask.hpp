// Mask: a score becomes -infinity where the element of a tensor is 0.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/modifiers/modifier.hpp"
#include "attention/online_softmax.hpp"

namespace rocflash::kernel {

template <class Pass>
struct Mask {
  static constexpr Feature feature = Feature::mask;
  Mask(const Problem&, const ScoreSlice&) {}

  template <class Unit, int count, class Query, class Key, class Score, class Slope>
  void apply(const Problem& p, const ScoreSlice& slice, Query query, Key key, Score score,
             Slope) const {
    const auto rows = slice.rows_of(p.mask, query);
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      const auto* row = reinterpret_cast<const std::uint8_t*>(rows(n));
      if (arch::load(row + slice.column_of(key(n)) * p.mask.key_stride) == 0) score(n) = -infinity;
    }
  }
};

}  // namespace rocflash::kernel
