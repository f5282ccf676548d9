// Counters for ordered (deterministic) dQ accumulation: how many blocks of keys have added to a
// tile of queries. RDNA2 always orders, since it has no f32 atomic add (rdna2_dq_ordered.hpp).
// There is one counter per 16-query block, stored after the accumulator; the first block's counter
// is that of the tile. Preprocess clears them.
#pragma once

#include "backward/dq_accumulator.hpp"

namespace rocflash::kernel {

class DqOrder {
 public:
  static bool is_ordered(const BackwardArguments& a) {
    return a.dq_accum_layout == dq_accum_ordered;
  }

  DqOrder(const BackwardArguments& a, const SequenceView& sequence)
      : counters_(reinterpret_cast<std::uint32_t*>(a.dq_accum.data)),
        head_stride_(blocks_of_head(a.dq_accum.head_stride, a.dq_accum.columns)) {
    const Problem& p = a.problem;
    const bool packed = p.lengths.packed_q();
    const std::int64_t bh_counters = (packed ? 1 : p.lengths.batch) * p.heads,
                       bh = packed ? 0 : sequence.batch * p.heads;
    counters_ += bh_counters * a.dq_accum.head_stride + bh * head_stride_ +
                 sequence.q_row / DqAccumulator::rows + (packed ? sequence.batch : 0);
  }

  std::uint32_t* counter(std::int64_t head, std::int32_t query) const {
    return counters_ + head * head_stride_ + query / DqAccumulator::rows;
  }
  std::int64_t head_stride() const { return head_stride_; }

 private:
  // columns is a power of two or three times one, so that the quotient of the division fits 32
  // bits.
  static std::int64_t blocks_of_head(std::int64_t floats, std::int32_t columns) {
    const int shift = __builtin_ctz(static_cast<std::uint32_t>(columns));
    return static_cast<std::uint32_t>(floats / DqAccumulator::rows >> shift) /
           static_cast<std::uint32_t>(columns >> shift);
  }

  std::uint32_t* counters_;
  std::int64_t head_stride_;
};

}  // namespace rocflash::kernel
