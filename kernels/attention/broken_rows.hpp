// Rows of an NVIDIA warp's results that are not finite, or not to be trusted, and are computed again at the end (exact.hpp). Four
// neighbouring lanes hold the same rows, up to four of them.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "tile/quads.hpp"

namespace rocflash::kernel {

class BrokenRows {
 public:
  struct Row {
    int first_lane, which;  // of the lanes that hold it, and of their rows
  };

  // Every lane tells of its row `which`.
  void add(int which, bool is_broken) {
    std::uint32_t lanes = arch::ballot(is_broken);
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

// What the weights of a row are relative to, and what its results were multiplied with.
struct RowNormal {
  float base, factor;

  template <class Softmax, int rows>
  RowNormal(BrokenRows::Row row, const Softmax (&softmax)[rows], const float (&factors)[rows])
      : base(0), factor(0) {
    static_assert(rows <= row_lanes);
    ROCFLASH_UNROLL
    for (int i = 0; i < rows; ++i) {
      base = i == row.which ? softmax[i].base() : base;
      factor = i == row.which ? factors[i] : factor;
    }
    base = arch::from_lane(base, row.first_lane);
    factor = arch::from_lane(factor, row.first_lane);
  }
};

}  // namespace rocflash::kernel
