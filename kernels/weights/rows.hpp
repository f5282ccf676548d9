// s_dmask: the weights themselves, negative where dropout drops them. Each wave handles one row at a time:
// its lanes divide the keys among them, agree on the largest score and the sum, and visit the keys again.
// Forward's lse is not used: it is rounded.
#pragma once

#include "attention/exact.hpp"
#include "table/weights.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void weights(const WeightsArguments& a) {
  constexpr DType dtype = spec.dtype;
  const Problem& p = a.problem;
  constexpr int waves = weights_tile.threads / arch::wave_size;
  const std::int64_t rows = p.batch() * p.heads * p.max_q;
  // All lanes of a wave have the same row. The compiler is not told, so that what is computed from it
  // lies in vector registers, which are plenty here.
  const std::int64_t first = arch::group() * std::int64_t{waves} + arch::thread() / arch::wave_size;
  for (std::int64_t row = first; row < rows; row += std::int64_t{a.groups} * waves) {
    const auto index = static_cast<std::int32_t>(row % p.max_q);
    const std::int64_t plane = row / p.max_q, head = plane % p.heads;
    const SequenceView sequence(p, plane / p.heads);
    const QueryView query(p.visibility, sequence, index);
    // With f32 queries k may have another dtype.
    using Scores = ExactScores<dtype, typename UnitOf<dtype>::Type, dtype == DType::f32>;
    const Scores scores{p, sequence, head, a.caches};
    using Unit = typename Scores::Unit;

    SoftmaxOf<Unit> own;
    for (std::int32_t key = query.begin + arch::lane(); key < query.end; key += arch::wave_size) {
      const float score = scores.score(query, key);
      own.follow(score);
      own.sum += Unit::exp(score - own.base());
    }
    float largest = p.sinks ? sink_of(p, head) * Unit::of_natural : -infinity;
    const float sink = largest;
    for (int lane = 0; lane < arch::wave_size; ++lane)
      largest = __builtin_fmaxf(largest, arch::from_lane(own.reference, lane));
    const float base = largest == -infinity ? 0.0f : largest;
    float total = sink == -infinity ? 0.0f : Unit::exp(sink - base);
    for (int lane = 0; lane < arch::wave_size; ++lane) {
      const float reference = arch::from_lane(own.reference, lane),
                  sum = arch::from_lane(own.sum, lane);
      // A lane without a largest score may still have NaN in its sum.
      if (reference > -infinity || sum != 0) total += sum * Unit::exp(reference - base);
    }

    const PerScore& out = arch::again(a).weights;
    const std::int64_t begin =
        sequence.batch * out.batch_stride + head * out.head_stride + index * out.query_stride;
    for (auto key = static_cast<std::int32_t>(arch::lane()); key < p.max_k;
         key += arch::wave_size) {
      float weight = 0;
      if (query.sees(key) && total != 0) {
        // A key that mask or bias hides has weight 0, whatever the total is.
        const float score = scores.score(query, key);
        weight = score == -infinity ? 0.0f : Unit::exp(score - base) / total;
        if (p.dropout.on() && !scores.shape.keeps(query, key)) weight = -weight;
      }
      const std::int64_t element = begin + key * out.key_stride;
      store_number(out.data, out.dtype == DType::f32 ? DType::f32 : dtype, element, weight);
    }
  }
}

}  // namespace rocflash::kernel
