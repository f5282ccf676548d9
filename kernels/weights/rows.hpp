// s_dmask: the softmax weights, negative where dropout drops them. Each wave handles one row at a
// time. Its lanes split the keys, reduce row max and row sum, and then compute the weights in a
// second pass. Forward's LSE is not used: it is rounded.
#pragma once

#include "attention/exact_recompute.hpp"
#include "table/weights.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void weights(const WeightsArguments& a) {
  constexpr DType dtype = spec.dtype;
  static_assert(element_bytes<dtype> > 0);  // a dtype without traits does not compile
  const Problem& p = a.problem;
  constexpr int waves = weights_tile.threads / arch::wave_size;
  const std::int64_t rows = p.batch() * p.heads * p.max_q;
  // All lanes of a wave have the same row. It is not marked uniform, so that values derived from it
  // are in VGPRs, to save SGPRs.
  const std::int64_t first =
      arch::workgroup_id() * std::int64_t{waves} + arch::thread() / arch::wave_size;
  for (std::int64_t row = first; row < rows; row += std::int64_t{a.workgroups} * waves) {
    const auto index = static_cast<std::int32_t>(row % p.max_q);
    const std::int64_t bh = row / p.max_q, head = bh % p.heads;
    const SequenceView sequence(p, bh / p.heads);
    const QueryView query(p.visibility, sequence, index);
    // With f32 queries K may have another dtype, and 8 bits with any.
    constexpr bool mixed = dtype == DType::f32;
    using Scores = ExactScores<dtype, NaturalLogDomain, mixed, mixed, Codes::computed>;
    const Scores scores{p, sequence, head, a.caches};
    using Unit = typename Scores::Unit;

    BasicOnlineSoftmax<Unit> own;
    for (std::int32_t key = query.begin + arch::lane(); key < query.end; key += arch::wave_size) {
      const float score = scores.score(query, key);
      own.rescale(score);
      own.sum += Unit::exp(score - own.base());
    }
    float largest = p.sinks ? sink_of(p, head) : -infinity;
    const float sink = largest;
    for (int lane = 0; lane < arch::wave_size; ++lane)
      largest = __builtin_fmaxf(largest, arch::readlane(own.row_max, lane));
    const float base = largest == -infinity ? 0.0f : largest;
    float total = sink == -infinity ? 0.0f : Unit::exp(sink - base);
    for (int lane = 0; lane < arch::wave_size; ++lane) {
      const float row_max = arch::readlane(own.row_max, lane), sum = arch::readlane(own.sum, lane);
      // The row max of a lane with NaN scores may be -infinity; its sum is NaN.
      if (row_max > -infinity || sum != 0) total += sum * Unit::exp(row_max - base);
    }

    const PerScore& out = arch::reload_kernargs(a).weights;
    const std::int64_t begin =
        sequence.batch * out.batch_stride + head * out.head_stride + index * out.query_stride;
    for (auto key = static_cast<std::int32_t>(arch::lane()); key < p.max_k;
         key += arch::wave_size) {
      float weight = 0;
      if (query.attends_to(key) && total != 0) {
        // A masked key (also by a bias of -infinity) has weight 0, even if the total is not finite.
        const float score = scores.score(query, key);
        weight = score == -infinity ? 0.0f : Unit::exp(score - base) / total;
        if (p.dropout.on() && !scores.score_mod.keeps(query.index, key)) weight = -weight;
      }
      const std::int64_t element = begin + key * out.key_stride;
      store_element(out.data, out.dtype == DType::f32 ? DType::f32 : dtype, element, weight);
    }
  }
}

}  // namespace rocflash::kernel
