// Zero-fills rows of gradients and of delta that no kernel computes: padding, rows past the used
// length of a sequence, and rows of packed tensors outside all sequences. The main kernels write
// only rows in use.
//
// work.blocks workgroups share a sequence, and as many share the rows outside all sequences.
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "table/backward.hpp"

namespace rocflash::kernel {

// Rows [begin, end) of all heads; workgroup `part` of `parts`.
template <int threads>
void clear_rows(const Rows& rows, std::int64_t heads, std::int64_t batch, std::int64_t begin,
                std::int64_t end, std::int32_t part, std::int32_t parts) {
  if (!rows) return;
  const std::int64_t columns = rows.columns, count = (end - begin) * heads * columns;
  const bool two_bytes = size_of(rows.dtype) == 2;
  for (std::int64_t n = std::int64_t{part} * threads + arch::thread(); n < count;
       n += std::int64_t{parts} * threads) {
    const std::int64_t column = n % columns, head = n / columns % heads,
                       row = begin + n / columns / heads;
    const std::int64_t element =
        batch * rows.batch_stride + row * rows.row_stride + head * rows.head_stride + column;
    if (two_bytes) {
      arch::store(reinterpret_cast<std::uint16_t*>(rows.data) + element, std::uint16_t{0});
    } else {
      arch::store(reinterpret_cast<float*>(rows.data) + element, 0.0f);
    }
  }
}

inline Rows rows_of(const RowStatistic& statistic) {
  return {.data = reinterpret_cast<std::byte*>(statistic.data),
          .dtype = DType::f32,
          .batch_stride = statistic.batch_stride,
          .row_stride = statistic.query_stride,
          .head_stride = statistic.head_stride,
          .columns = 1};
}

// The unused rows of one sequence; index `batch` is the rows outside all sequences.
template <int threads>
void clear_sequence(const BackwardArguments& a, std::int64_t number, std::int32_t part) {
  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const Lengths& l = p.lengths;
  const auto clear = [&](const Rows& rows, std::int64_t heads, std::int64_t batch,
                         std::int64_t begin, std::int64_t end) {
    clear_rows<threads>(rows, heads, batch, begin, end, part, a.work.blocks);
  };
  if (number < l.batch) {
    const SequenceView s(p, number);
    const std::int64_t q_batch = l.packed_q() ? 0 : s.batch, k_batch = l.packed_k() ? 0 : s.batch;
    const auto clear_queries = [&](const Rows& rows) {
      clear(rows, p.heads, q_batch, s.q_row + s.sq, s.q_row + s.q_rows);
    };
    clear_queries(t.dq);
    clear_queries(rows_of(a.delta));
    const auto clear_keys = [&](const Rows& rows) {
      clear(rows, p.kv_heads, k_batch, s.k_first, s.k_row);
      clear(rows, p.kv_heads, k_batch, s.k_row + s.sk, s.k_first + s.k_rows);
    };
    clear_keys(t.dk);
    clear_keys(t.dv);
    return;
  }
  const auto zero_unused_rows = [&](const Rows& rows, std::int64_t heads,
                                    const std::int32_t* starts, std::int64_t count) {
    const std::int64_t begin = l.batch > 0 ? clamp(arch::load(starts), 0, count) : 0;
    const std::int64_t end = l.batch > 0 ? clamp(arch::load(starts + l.batch), begin, count) : 0;
    clear(rows, heads, 0, 0, begin);
    clear(rows, heads, 0, end, count);
  };
  if (l.packed_q()) {
    zero_unused_rows(t.dq, p.heads, l.cu_q, l.rows_q);
    zero_unused_rows(rows_of(a.delta), p.heads, l.cu_q, l.rows_q);
  }
  if (l.packed_k()) {
    zero_unused_rows(t.dk, p.kv_heads, l.cu_k, l.rows_k);
    zero_unused_rows(t.dv, p.kv_heads, l.cu_k, l.rows_k);
  }
}

template <KernelSpec spec>
void backward_zero_fill(const BackwardArguments& a) {
  constexpr int threads = backward_tile(this_family, spec).threads;
  const std::int32_t parts = a.work.blocks;
  for (std::int64_t number = arch::workgroup_id() / parts; number <= a.problem.lengths.batch;
       number += a.work.workgroups / parts)
    clear_sequence<threads>(a, number, arch::workgroup_id() % parts);
}

}  // namespace rocflash::kernel
