// dq from the sums that backward_fused has added up: times the scale and dropout's scale, rounded. Rows
// whose sums are not finite, or not to be trusted, are computed again one by one.
//
// Each workgroup has tile.owned queries of one head. A wave takes a row at a time, a lane two neighbouring
// columns of it.
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "attention/work.hpp"
#include "backward/exact.hpp"
#include "table/backward.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void backward_round(const BackwardArguments& a) {
  constexpr BackwardTile tile = backward_tile(this_family, spec);
  constexpr int waves = tile.threads / arch::wave_size;
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t begin = item.block * tile.owned;
  const auto end = static_cast<std::int32_t>(smaller(begin + tile.owned, sequence.sq));
  const float factor = p.scale * (p.dropout.on() ? p.dropout.scale() : 1.0f);
  for (std::int32_t query = begin + arch::wave(); query < end; query += waves) {
    const std::int64_t row = sequence.q_row + query;
    const auto* from = reinterpret_cast<const float*>(
        row_address<DType::f32>(a.dq_sums, sequence.batch, row, item.head));
    auto* to = reinterpret_cast<std::uint16_t*>(
        row_address<spec.dtype>(a.tensors.dq, sequence.batch, row, item.head));
    float probe = 0;  // NaN once a sum is not finite
    for (int column = 2 * arch::lane(); column < p.head_dim; column += 2 * arch::wave_size) {
      // Sums have an even number of columns, dq may not.
      const Float2 sum = arch::load(reinterpret_cast<const Float2*>(from + column));
      probe = __builtin_fmaf(sum.x, 0.0f, __builtin_fmaf(sum.y, 0.0f, probe));
      arch::store(to + column, narrow<spec.dtype>(sum.x * factor));
      if (column + 1 < p.head_dim) arch::store(to + column + 1, narrow<spec.dtype>(sum.y * factor));
    }
    if (arch::any(probe != 0) || products_overflow(p))
      exact_dq<spec.dtype>(arch::again(a), sequence, item.head, query, factor);
  }
}

}  // namespace rocflash::kernel
