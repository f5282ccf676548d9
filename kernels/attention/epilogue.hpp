// Epilogue of all forward schedules: sink, normalization, LSE.
#pragma once

#include "attention/arguments.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "table/kernels.hpp"

namespace rocflash::kernel {

// Normalization of one head's rows, with its sink and the dropout scale.
template <Variant variant, class Unit = FastNaturalLogDomain>
class SoftmaxFinalizer {
 public:
  // `has_score_mod`: score modifiers scaled the products, not the FMA that subtracts the running
  // max.
  SoftmaxFinalizer(const Problem& p, std::int64_t head, bool has_score_mod)
      : problem_(p),
        has_score_mod_(has_score_mod),
        has_sink_(generic && p.sinks),
        sink_(has_sink_ ? sink_of(p, head) : 0.0f) {}

  // `total` is the row sum relative to `row_max`. The factor is NaN where the row must be
  // recomputed.
  Normalizer operator()(float row_max, float total) const {
    Normalizer normalizer = normalize<Unit>(row_max, total, has_sink_, sink_);
    if (generic && problem_.dropout.on()) normalizer.factor *= problem_.dropout.scale();
    if (!has_score_mod_ && shifts_exponents(row_max)) normalizer.factor = __builtin_nanf("");
    return normalizer;
  }

 private:
  static constexpr bool generic = variant == Variant::generic;
  const Problem& problem_;
  bool has_score_mod_, has_sink_;
  float sink_;
};

// `query` is relative to its sequence; unused rows get +infinity.
inline void store_lse(const ForwardOutputs& outputs, const SequenceView& sequence,
                      std::int64_t head, std::int32_t query, float lse) {
  arch::store(&outputs.lse.at(sequence.batch, head, sequence.q_row + query),
              query < sequence.sq ? lse : infinity);
}

}  // namespace rocflash::kernel
