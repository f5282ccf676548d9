// Rows of packed outputs outside all sequences.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/elements.hpp"
#include "attention/online_softmax.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"

namespace rocflash::kernel {

inline void clear_row(const ForwardOutputs& outputs, DType dtype, std::int64_t row,
                      std::int64_t head) {
  std::byte* to = row_address(outputs.out, dtype, 0, row, head);
  for (int column = 0; column < outputs.out.columns; ++column) store_element(to, dtype, column, 0);
  const RowStatistic& lse = outputs.lse;
  if (lse) arch::store(lse.data + head * lse.head_stride + row * lse.query_stride, infinity);
}

// Rows of packed outputs outside all sequences: the workgroups of the last sequence set them to 0,
// and their lse to +infinity.
template <int threads>
void zero_unused_rows(const ForwardArguments& a, const WorkTile& item, DType dtype) {
  const Problem& p = a.problem;
  const Lengths& l = p.lengths;
  if (!l.cu_q || item.batch + 1 < l.batch) return;
  const std::int64_t begin = l.batch > 0 ? clamp(arch::load(l.cu_q), 0, l.rows_q) : 0;
  const std::int64_t end = l.batch > 0 ? clamp(arch::load(l.cu_q + l.batch), begin, l.rows_q) : 0;
  const std::int64_t outside = l.rows_q - (end - begin);
  for (std::int64_t n = item.block * threads + arch::thread(); n < outside;
       n += a.work.blocks * threads) {
    clear_row(a.outputs, dtype, n < begin ? n : n + end - begin, item.head);
  }
}

// The same by all threads of a launch: thread `first` of `threads`.
inline void zero_unused_rows(const ForwardArguments& a, DType dtype, std::int64_t first,
                             std::int64_t threads) {
  const Lengths& l = a.problem.lengths;
  if (!l.cu_q) return;
  const std::int64_t begin = l.batch > 0 ? clamp(arch::load(l.cu_q), 0, l.rows_q) : 0;
  const std::int64_t end = l.batch > 0 ? clamp(arch::load(l.cu_q + l.batch), begin, l.rows_q) : 0;
  const std::int64_t outside = l.rows_q - (end - begin);
  for (std::int64_t n = first; n < outside * a.problem.heads; n += threads) {
    const std::int64_t row = n / a.problem.heads;
    clear_row(a.outputs, dtype, row < begin ? row : row + end - begin, n % a.problem.heads);
  }
}

}  // namespace rocflash::kernel
