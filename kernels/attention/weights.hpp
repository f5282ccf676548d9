// s_dmask: the weights themselves, negative where dropout drops them, from the lse that forward
// wrote. A thread an element, in the order of (sequence, head, query, key).
#pragma once

#include "attention/exact.hpp"

namespace rocflash::kernel {

template <DType dtype>
void weights(const WeightsArguments& a) {
  const Problem& p = a.problem;
  const std::int64_t count = p.batch() * p.heads * p.max_q * p.max_k;
  const std::int64_t threads = std::int64_t{a.groups} * weights_tile.threads;
  for (std::int64_t n = arch::group() * std::int64_t{weights_tile.threads} + arch::thread();
       n < count; n += threads) {
    const auto key = static_cast<std::int32_t>(n % p.max_k);
    const auto index = static_cast<std::int32_t>(n / p.max_k % p.max_q);
    const std::int64_t plane = n / p.max_k / p.max_q, head = plane % p.heads;
    const SequenceView sequence(p, plane / p.heads);
    const QueryView query(p.visibility, sequence, index);
    float weight = 0;
    if (query.sees(key)) {
      const ExactScores<dtype> scores{p, sequence, head, a.caches};
      const float lse = arch::load(&a.lse.at(sequence.batch, head, sequence.q_row + index));
      // A query that sees nothing has an lse of +infinity, and a NaN must stay one.
      weight = arch::exp2(scores.score(query, key) - lse * log2_e);
      if (p.dropout.on() && !scores.shape.keeps(query, key)) weight = -weight;
    }
    const Plane& out = a.weights;
    const std::int64_t element = sequence.batch * out.batch_stride + head * out.head_stride +
                                 index * out.query_stride + key * out.key_stride;
    if (out.dtype == DType::f32) {
      arch::store(reinterpret_cast<float*>(out.data) + element, weight);
    } else {
      arch::store(reinterpret_cast<std::uint16_t*>(out.data) + element, narrow<dtype>(weight));
    }
  }
}

}  // namespace rocflash::kernel
