// ALiBi: subtracts slope · distance between query position and key.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/modifiers/modifier.hpp"

namespace rocflash::kernel {

template <class Pass>
struct Alibi {
  static constexpr Feature feature = Feature::alibi;
  Alibi(const Problem& p, const ScoreSlice& slice) {
    if (p.alibi)
      slope_ = Pass::number(arch::load(reinterpret_cast<const float*>(p.alibi.data) +
                                       slice.sequence.batch * p.alibi.batch_stride +
                                       slice.head * p.alibi.head_stride));
  }

  template <class Unit, int count, class Query, class Key, class Score, class Slope>
  void apply(const Problem&, const ScoreSlice& slice, Query query, Key key, Score score,
             Slope) const {
    const std::int32_t shift = slice.sequence.sk - slice.sequence.sq;
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      const std::int32_t distance = query(n) + shift - key(n);
      score(n) -= slope_ * static_cast<float>(distance < 0 ? -distance : distance);
    }
  }

 private:
  float slope_ = 0;
};

}  // namespace rocflash::kernel
