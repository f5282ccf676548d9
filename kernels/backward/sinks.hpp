// d(loss)/d(sink) of a head = - sum over its queries of the sink's weight times dout·out. Each workgroup
// adds up all queries of one head at a time, always in the same order.
#pragma once

#include "arch/arch.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "backward/statistic.hpp"
#include "table/backward.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void backward_sinks(const BackwardArguments& a) {
  constexpr int threads = backward_tile(this_family, spec).threads;
  const Problem& p = a.problem;
  const float scale = p.dropout.on() ? p.dropout.scale() : 1.0f;
  for (std::int64_t head = arch::group(); head < p.heads; head += a.work.groups) {
    const float sink = sink_of(p, head);
    float sum = 0;
    for (std::int64_t b = 0; b < p.batch() && sink > -infinity; ++b) {
      const SequenceView sequence(p, b);
      for (std::int32_t i = arch::thread(); i < sequence.sq; i += threads) {
        const std::int64_t row = sequence.q_row + i;
        const float lse = statistic(arch::load(&a.tensors.lse.at(b, head, row)), 1);
        const float weight = lse == infinity ? 0.0f : NaturalPowers::fine_exp(sink - lse);
        const float delta = arch::load(&a.delta.at(b, head, row));
        if (weight != 0) sum -= weight * delta * scale;
      }
    }
    const float total = sum_of_group<spec, threads>(sum);
    if (arch::thread() == 0)
      arch::store(
          reinterpret_cast<float*>(a.tensors.dsinks.data) + head * a.tensors.dsinks.head_stride,
          total);
  }
}

}  // namespace rocflash::kernel
