// dsink of a head = −Σ over its queries of the sink's weight times delta. Each workgroup reduces
// one head at a time, in a fixed order.
#pragma once

#include "arch/arch.hpp"
#include "attention/elements.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "backward/row_statistics.hpp"
#include "table/backward.hpp"

namespace rocflash::kernel {

// Whether no key contributes to a query. Its delta is then 0, although rowsum(dO·O) is NaN where dO
// is not finite.
inline bool has_zero_output(const BackwardArguments& a, std::int64_t batch, std::int64_t row,
                            std::int64_t head) {
  const DType dtype = a.problem.dtype;
  const std::byte* out = row_address(a.tensors.out, dtype, batch, row, head);
  bool zero = true;
  for (int column = 0; column < a.problem.value_dim; ++column)
    zero &= load_element(out, dtype, column) == 0;
  return zero;
}

template <KernelSpec spec>
void backward_dsinks(const BackwardArguments& a) {
  constexpr int threads = backward_tile(this_family, spec).threads;
  const Problem& p = a.problem;
  const float scale = p.dropout.on() ? p.dropout.scale() : 1.0f;
  for (std::int64_t head = arch::workgroup_id(); head < p.heads; head += a.work.workgroups) {
    const float sink = sink_of(p, head);
    float sum = 0;
    // A NaN sink propagates: it makes the lse of every row NaN, too.
    for (std::int64_t b = 0; b < p.batch() && sink != -infinity; ++b) {
      const SequenceView sequence(p, b);
      for (std::int32_t i = arch::thread(); i < sequence.sq; i += threads) {
        const std::int64_t row = sequence.q_row + i;
        const RowSoftmax softmax(a, b, head, row);
        const float weight = softmax.base == infinity
                                 ? 0.0f
                                 : NaturalLogDomain::fine_exp(sink - softmax.base) * softmax.share;
        const float delta = arch::load(&a.delta.at(b, head, row));
        if (weight == 0) continue;
        if (delta != delta && has_zero_output(a, b, row, head)) continue;
        sum -= weight * delta * scale;
      }
    }
    const float total = workgroup_sum<spec, threads>(sum);
    if (arch::thread() == 0)
      arch::store(
          reinterpret_cast<float*>(a.tensors.dsinks.data) + head * a.tensors.dsinks.head_stride,
          total);
  }
}

}  // namespace rocflash::kernel
