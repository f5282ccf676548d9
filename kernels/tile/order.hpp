// In which order the results of one product become the depth of the next. Ordinary C++, tested on the
// host.
//
// A product does not care in which order its depth is summed, as long as both operands agree. So a
// lane gives the results that it has, as they stand in its registers, and the other operand is
// stored, or read, in that order. Take scores = K Q^T on CDNA, and then V^T P^T with P the weights
// of 16 keys:
//
//   lane 0  has keys 0 1 2 3  8  9 10 11      the first chunk of eight: position 0-7
//   lane 32 has keys 4 5 6 7 12 13 14 15      the second: position 8-15
//
// On architectures whose operands are whole in both halves of the wave, each half first gets the
// other's chunk.
#pragma once

#include "arch/layout.hpp"

namespace rocflash::kernel {

inline constexpr int order_rows = 16;    // of results that one step of depth takes
inline constexpr int order_results = 8;  // registers of them that a lane has

// The row of the results that stands at `position` of the depth of the next product: rows and
// positions count within 16 neighbouring rows.
template <class Layout>
constexpr int operand_order(int position) {
  constexpr int other_half = Layout::lanes / 2;
  return layout::result_row<Layout>(position / order_results * other_half,
                                    position % order_results);
}

}  // namespace rocflash::kernel
