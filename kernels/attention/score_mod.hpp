// score_mod: what changes scores between QKᵀ and the softmax. One implementation for forward,
// decode, backward and the recomputation of single scores; each modifier is a file of modifiers/,
// which modifiers/modifier.hpp describes.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/dropout.hpp"
#include "attention/modifiers/alibi.hpp"
#include "attention/modifiers/bias.hpp"
#include "attention/modifiers/mask.hpp"
#include "attention/modifiers/modifier.hpp"
#include "attention/modifiers/softcap.hpp"
#include "attention/online_softmax.hpp"
#include "attention/row_views.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

// A negative scale negates Q, so that the row max of q·k is the row max of the scores. The
// remaining scale is positive. The launch plan gives a scale of 0 to the generic kernel, which
// applies it before it masks.
template <class Domain>
struct ScaleOf {
  float softmax_scale;  // |scale|, times log2(e) in the log2 domain
  bool negate_q;
  explicit ScaleOf(float scale)
      : softmax_scale(__builtin_fabsf(scale) * Domain::from_natural), negate_q(scale < 0) {}
};
using Scale = ScaleOf<Log2Domain>;
using GenericScale = ScaleOf<FastNaturalLogDomain>;

// score_mod and dropout of generic kernels for one (batch, head) slice: the scale, then the
// modifiers in the order of the list.
template <class Pass, template <class> class... Modifiers>
class BasicScoreMod : public DropoutMask<Pass>, private Modifiers<Pass>... {
  static_assert((Features(Modifiers<Pass>::feature) | ... |
                 (Feature::zero_scale | Feature::large_scale)) == feature_set::score_modifiers,
                "each score modifier has a feature bit");

 public:
  BasicScoreMod(const Problem& p, const SequenceView& s, std::int64_t head)
      : DropoutMask<Pass>(p, s.batch * p.heads + head),
        Modifiers<Pass>(p, ScoreSlice{s, head})...,
        problem_(p),
        slice_{s, head} {}

  // Computes scores from `count` products q·k, in the natural log domain: score(n) is a reference
  // to score n; query(n) and key(n) are its indices. slope(n, x) multiplies the derivative of score
  // n with respect to the scaled product by x; without a call it is 1.
  template <int count, class Unit, class Query, class Key, class Score, class Slope = NoSlopes>
  void apply(Query query, Key key, Score score, Slope slope = {}) const {
    apply_scaled<count, Unit>(query, key, score,
                              __builtin_fabsf(arch::reload_kernargs(problem_).scale), slope);
  }
  // With an explicit scale.
  template <int count, class Unit, class Query, class Key, class Score, class Slope = NoSlopes>
  void apply_scaled(Query query, Key key, Score score, float scale, Slope slope = {}) const {
    static_assert(Unit::from_natural == 1, "a score times log2(e) may overflow");
    // Reloaded per tile: the strides of all options exceed the SGPR budget.
    const Problem& p = arch::reload_kernargs(problem_);
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) score(n) *= scale;
    const auto apply_one = [&]<class Modifier>(const Modifier& modifier) {
      if (has_feature<Modifier::feature>(p))
        modifier.template apply<Unit, count>(p, slice_, query, key, score, slope);
    };
    (apply_one(static_cast<const Modifiers<Pass>&>(*this)), ...);
  }

 private:
  const Problem& problem_;
  ScoreSlice slice_;
};

template <class Pass>
using ScoreModOf = BasicScoreMod<Pass, Softcap, Alibi, Bias, Mask>;
using ScoreMod = ScoreModOf<ForwardPass>;
using ScoreModGradient = ScoreModOf<BackwardPass>;

inline float sink_of(const Problem& p, std::int64_t head) {
  const std::int64_t index = head * p.sinks.head_stride;
  if (p.sinks.dtype == DType::f32)
    return arch::load(reinterpret_cast<const float*>(p.sinks.data) + index);
  const std::uint16_t bits =
      arch::load(reinterpret_cast<const std::uint16_t*>(p.sinks.data) + index);
  return widen(p.sinks.dtype, bits);
}

}  // namespace rocflash::kernel
