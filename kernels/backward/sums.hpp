// Sums of dq in f32, in the call's scratch memory on AMD GPUs: rows of whole chunks of 16 bytes, side by side, or
// blocks (backward/dq_sums.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "backward/turns.hpp"
#include "table/backward.hpp"

namespace rocflash::kernel {

// Where the sum of a query's column lies, with those of the columns behind it in its quad. `Mma` is what adds to it.
template <class Mma>
float* sum_of(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
              std::int32_t query, int column) {
  if constexpr (adds_in_turn(this_family)) {
    // Of transposed products, in which a lane has neighbouring columns: rows of a block.
    const int row = query % Mma::columns;
    return SumsInBlocks<Mma::columns>(a, sequence, head).start(query - row, column / Mma::rows) +
           row * Mma::rows + column % Mma::rows;
  } else if constexpr (sums_in_blocks(this_family)) {
    // Which result of which half of the wave.
    constexpr bool every_other = Mma::Layout::register_row(1) == 2;
    const int row = query % Mma::rows, r = every_other ? row / 2 : row % Mma::results,
              half = every_other ? row % 2 : row / Mma::results;
    return SumsInBlocks<Mma::columns>(a, sequence, head).start(query - row, column / Mma::columns) +
           arch::wave_size * r + Mma::columns * half + column % Mma::columns;
  } else {
    return reinterpret_cast<float*>(
               row_address<DType::f32>(a.dq_sums, sequence.batch, sequence.q_row + query, head)) +
           column;
  }
}

// Sets the sums of up to `count` queries from `first` on, a multiple of it, to 0, by one wave. Kernels that compute
// delta call it for the queries that they have: they run before anything is added, and once for each query.
// Does nothing where the plan has no sums.
template <class Mma, int count>
void clear_sums(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
                std::int32_t first) {
  const Rows& sums = a.dq_sums;
  if (!sums) return;
  // All of a block: what is added to rows behind the last one is 0, or nobody's.
  const std::int32_t rows =
      sequence.sq - first < count && !sums_in_blocks(this_family) ? sequence.sq - first : count;
  auto* to = reinterpret_cast<Float4*>(sum_of<Mma>(a, sequence, head, first, 0));
  for (std::int32_t n = arch::lane(); n < rows * (sums.columns / 4); n += arch::wave_size)
    arch::store(to + n, Float4{});
  if constexpr (adds_in_turn(this_family)) {
    static_assert(count == DqSums::rows);
    if (arch::lane() == 0) arch::store(DqTurns(a, sequence).counter(head, first), 0u);
  }
}

}  // namespace rocflash::kernel
