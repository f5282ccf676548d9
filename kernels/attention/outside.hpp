// Rows of packed outputs outside all sequences.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/numbers.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"

namespace rocflash::kernel {

// Rows of packed outputs outside all sequences: the workgroups of the last sequence set them to 0,
// and their lse to +infinity.
template <int threads>
void clear_outside(const ForwardArguments& a, const WorkItem& item, DType dtype) {
  const Problem& p = a.problem;
  const Lengths& l = p.lengths;
  if (!l.cu_q || item.batch + 1 < l.batch) return;
  const std::int64_t begin = l.batch > 0 ? clamp(arch::load(l.cu_q), 0, l.rows_q) : 0;
  const std::int64_t end = l.batch > 0 ? clamp(arch::load(l.cu_q + l.batch), begin, l.rows_q) : 0;
  const std::int64_t outside = l.rows_q - (end - begin);
  for (std::int64_t n = item.block * threads + arch::thread(); n < outside;
       n += a.work.blocks * threads) {
    const std::int64_t row = n < begin ? n : n + end - begin;
    const Rows& out = a.outputs.out;
    std::byte* to = row_address(out, dtype, 0, row, item.head);
    for (int column = 0; column < out.columns; ++column) store_number(to, dtype, column, 0);
    const RowStatistic& lse = a.outputs.lse;
    if (lse) arch::store(lse.data + item.head * lse.head_stride + row * lse.query_stride, infinity);
  }
}

}  // namespace rocflash::kernel
