// Non-finite or inaccurate rows of an NVIDIA warp, recomputed in the epilogue
// (exact_recompute.hpp). The four lanes of a quad hold the same rows, up to four.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "tile/quads.hpp"

namespace rocflash::kernel {

class NonFiniteRows {
 public:
  struct Row {
    int first_lane, which;  // first lane of the quad, index of its row
  };

  // Each lane passes the state of its row `which`.
  void add(int which, bool is_non_finite) {
    std::uint32_t lanes = arch::ballot(is_non_finite);
    lanes |= lanes >> 1;
    lanes |= lanes >> 2;
    bits_ |= (lanes & 0x11111111u) << which;
  }
  bool any() const { return bits_ != 0; }
  Row take() {
    const int bit = __builtin_ctz(bits_);
    bits_ &= bits_ - 1;
    return {bit / row_lanes * row_lanes, bit % row_lanes};
  }

 private:
  std::uint32_t bits_ = 0;
};

}  // namespace rocflash::kernel
