// Rows of packed outputs that belong to no sequence.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"

namespace rocflash::kernel {

// Rows of packed tensors before the first and after the last sequence belong to nobody, and
// somebody must clear them.
template <int threads>
void clear_outside(const ForwardArguments& a, const WorkItem& item) {
  const Problem& p = a.problem;
  const Lengths& l = p.lengths;
  if (!l.cu_q || item.batch + 1 < l.batch) return;
  const std::int64_t begin = l.batch > 0 ? clamp(arch::load(l.cu_q), 0, l.rows_q) : 0;
  const std::int64_t end = l.batch > 0 ? clamp(arch::load(l.cu_q + l.batch), begin, l.rows_q) : 0;
  const std::int64_t outside = l.rows_q - (end - begin);
  for (std::int64_t n = item.block * threads + arch::thread(); n < outside;
       n += a.work.query_blocks * threads) {
    const std::int64_t row = n < begin ? n : n + end - begin;
    const Rows& out = a.outputs.out;
    auto* to = reinterpret_cast<std::uint16_t*>(out.data) + row * out.row_stride +
               item.head * out.head_stride;
    for (int column = 0; column < out.columns; ++column) arch::store(to + column, std::uint16_t{0});
    const RowStatistic& lse = a.outputs.lse;
    if (lse) arch::store(lse.data + item.head * lse.head_stride + row * lse.query_stride, infinity);
  }
}

}  // namespace rocflash::kernel
