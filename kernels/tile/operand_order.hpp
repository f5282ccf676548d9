// Back-to-back GEMM without a register shuffle: the permutation of k under which the accumulators
// of the first GEMM are the operand of the second. constexpr, tested on the host.
//
// The k dimension may be permuted as long as A and B agree. So a lane passes its accumulators in
// register order, and the other operand is stored, or read, in that order. Example: S = K Q^T on
// CDNA, then V^T P^T with the weights P of 16 keys:
//
//   lane 0  holds keys 0 1 2 3  8  9 10 11      chunk 0: k 0-7
//   lane 32 holds keys 4 5 6 7 12 13 14 15      chunk 1: k 8-15
//
// Where both halves of the wave hold the whole operand, they exchange their chunks first.
#pragma once

#include "arch/layout.hpp"

namespace rocflash::kernel {

inline constexpr int order_rows = 16;    // of the accumulator tile per k-step
inline constexpr int order_results = 8;  // accumulator registers of a lane per k-step

// The accumulator row that is k index `position` of the next GEMM, both relative to a block of 16
// rows.
template <class Layout>
constexpr int operand_order(int position) {
  constexpr int other_half = Layout::lanes / 2;
  return layout::result_row<Layout>(position / order_results * other_half,
                                    position % order_results);
}

}  // namespace rocflash::kernel
