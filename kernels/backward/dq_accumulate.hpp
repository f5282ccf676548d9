// The f32 dQ accumulator in the workspace on AMD GPUs: contiguous rows padded to 16 bytes, or
// blocks (backward/dq_accumulator.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "backward/dq_ordered.hpp"
#include "table/backward.hpp"

namespace rocflash::kernel {

// Address of a query's accumulator at `column`, followed by the other columns of its quad. `Mma` is
// the matrix instruction whose results are added.
template <class Mma>
float* dq_address(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
                  std::int32_t query, int column) {
  if constexpr (has_ordered_dq(this_family)) {
    // dQᵀ products: a lane has adjacent columns, so a block stores rows.
    const int row = query % Mma::columns;
    return DqAccumulatorBlocks<Mma::columns>(a, sequence, head)
               .start(query - row, column / Mma::rows) +
           row * Mma::rows + column % Mma::rows;
  } else if constexpr (dq_accum_in_blocks(this_family)) {
    // Which result register, in which half of the wave.
    constexpr bool every_other = Mma::Layout::register_row(1) == 2;
    const int row = query % Mma::rows, r = every_other ? row / 2 : row % Mma::results,
              half = every_other ? row % 2 : row / Mma::results;
    return DqAccumulatorBlocks<Mma::columns>(a, sequence, head)
               .start(query - row, column / Mma::columns) +
           arch::wave_size * r + Mma::columns * half + column % Mma::columns;
  } else {
    return reinterpret_cast<float*>(
               row_address<DType::f32>(a.dq_accum, sequence.batch, sequence.q_row + query, head)) +
           column;
  }
}

// One wave clears the accumulator of up to `count` queries from `first` on, a multiple of `count`.
// The preprocess kernel calls it once per query, before any main kernel runs. It does nothing
// without an accumulator.
template <class Mma, int count>
void clear_dq_accumulator(const BackwardArguments& a, const SequenceView& sequence,
                          std::int64_t head, std::int32_t first) {
  const Rows& sums = a.dq_accum;
  if (!sums) return;
  // Whole blocks: rows past the end of the sequence receive zeros or values that are never read.
  const std::int32_t rows =
      sequence.sq - first < count && !dq_accum_in_blocks(this_family) ? sequence.sq - first : count;
  auto* to = reinterpret_cast<Float4*>(dq_address<Mma>(a, sequence, head, first, 0));
  for (std::int32_t n = arch::lane(); n < rows * (sums.columns / 4); n += arch::wave_size)
    arch::store(to + n, Float4{});
  if constexpr (has_ordered_dq(this_family)) {
    static_assert(count == DqAccumulator::rows);
    if (arch::lane() == 0) arch::store(DqOrder(a, sequence).counter(head, first), 0u);
  }
}

}  // namespace rocflash::kernel
