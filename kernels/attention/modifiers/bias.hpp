// Bias: adds an element of a tensor that may be broadcast.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/modifiers/modifier.hpp"
#include "attention/online_softmax.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

template <class Pass>
struct Bias {
  static constexpr Feature feature = Feature::bias;
  Bias(const Problem&, const ScoreSlice&) {}

  template <class Unit, int count, class Query, class Key, class Score, class Slope>
  void apply(const Problem& p, const ScoreSlice& slice, Query query, Key key, Score score,
             Slope) const {
    const auto rows = slice.rows_of(p.bias, query);
    const auto add = [&]<class Number>(Number, auto widened) {
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        const auto* row = reinterpret_cast<const Number*>(rows(n));
        const float bias = widened(arch::load(row + slice.column_of(key(n)) * p.bias.key_stride));
        // A bias of -infinity masks the key, even if its score is +infinity or NaN.
        score(n) = bias == -infinity ? bias : score(n) + bias;
        // Each score has an address of its own: few at a time, since VGPRs are scarce.
        if constexpr (!Query::is_same_for_all)
          if (n % 8 == 7) arch::sched_barrier();
      }
    };
    switch (p.bias.dtype) {
      case DType::f32:
        return add(float{}, Pass::number);
      case DType::f16:
        return add(std::uint16_t{}, widen<DType::f16>);
      case DType::bf16:
        return add(std::uint16_t{}, widen<DType::bf16>);
      case DType::f64:
      case DType::i32:
      case DType::boolean:
      case DType::e4m3fn:
      case DType::e4m3fnuz:
      case DType::e5m2:
      case DType::e5m2fnuz:
      case DType::i8:
        break;
    }
    __builtin_unreachable();
  }
};

}  // namespace rocflash::kernel
