// Counters by which workgroups that own keys take turns at the sums of dq, where the same bits are wanted on every
// run, or where memory cannot add (amd_in_turn.hpp): how many have added. One per block of 16 queries of the sums,
// behind all of them; that of a tile's first block counts. The kernel that clears the sums clears them.
#pragma once

#include "backward/dq_sums.hpp"

namespace rocflash::kernel {

class DqTurns {
 public:
  // Whether there are counters.
  static bool in_order(const BackwardArguments& a) { return a.sums_by_lane == sums_in_turn; }

  DqTurns(const BackwardArguments& a, const SequenceView& sequence)
      : counters_(reinterpret_cast<std::uint32_t*>(a.dq_sums.data)),
        head_stride_(blocks_of_head(a.dq_sums.head_stride, a.dq_sums.columns)) {
    const Problem& p = a.problem;
    const bool packed = p.lengths.packed_q();
    const std::int64_t planes = (packed ? 1 : p.lengths.batch) * p.heads,
                       plane = packed ? 0 : sequence.batch * p.heads;
    counters_ += planes * a.dq_sums.head_stride + plane * head_stride_ +
                 sequence.q_row / DqSums::rows + (packed ? sequence.batch : 0);
  }

  std::uint32_t* counter(std::int64_t head, std::int32_t query) const {
    return counters_ + head * head_stride_ + query / DqSums::rows;
  }
  std::int64_t head_stride() const { return head_stride_; }

 private:
  // Columns are a power of two, or three times one: what is left of the division has 32 bits.
  static std::int64_t blocks_of_head(std::int64_t floats, std::int32_t columns) {
    const int shift = __builtin_ctz(static_cast<std::uint32_t>(columns));
    return static_cast<std::uint32_t>(floats / DqSums::rows >> shift) /
           static_cast<std::uint32_t>(columns >> shift);
  }

  std::uint32_t* counters_;
  std::int64_t head_stride_;
};

}  // namespace rocflash::kernel
