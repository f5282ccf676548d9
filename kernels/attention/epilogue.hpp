// What ends every forward schedule: the sink, one division, the lse.
#pragma once

#include "attention/arguments.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "table/kernels.hpp"

namespace rocflash::kernel {

// The sink and dropout's factor for the outputs of one head, looked up once.
template <Variant variant, class Unit = PowersOfTwo>
class Finish {
 public:
  Finish(const Problem& p, std::int64_t head)
      : problem_(p), has_sink_(full && p.sinks), sink_(has_sink_ ? sink_of(p, head) : 0.0f) {}

  // `total` is the sum of a query's weights relative to `reference`.
  Normaliser operator()(float reference, float total) const {
    Normaliser normaliser = normalise<Unit>(reference, total, has_sink_, sink_);
    if (full && problem_.dropout.on()) normaliser.factor *= problem_.dropout.scale();
    return normaliser;
  }

 private:
  static constexpr bool full = variant == Variant::full;
  const Problem& problem_;
  bool has_sink_;
  float sink_;
};

// `query` counts in its sequence; rows that are not in use get +infinity.
inline void store_lse(const ForwardOutputs& outputs, const SequenceView& sequence,
                      std::int64_t head, std::int32_t query, float lse) {
  arch::store(&outputs.lse.at(sequence.batch, head, sequence.q_row + query),
              query < sequence.sq ? lse : infinity);
}

}  // namespace rocflash::kernel
