// Layout of the f32 dQ accumulator on NVIDIA GPUs and RDNA, to which all workgroups of a head add.
// A block has 16 queries and as many columns as an MMA result, 8 or 16, in the register order of
// that result: register 0 of all lanes, then register 1. A wave therefore adds to whole 128-byte
// lines. For TMA reduce-add from shared memory the four registers of a lane are contiguous instead
// (BackwardArguments::dq_accum_layout).
//
// Each sequence starts at a new block, also in packed tensors: the workspace has one more block per
// sequence.
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

template <int columns_>
class DqAccumulatorBlocks {
 public:
  static constexpr int rows = 16, columns = columns_, block_floats = rows * columns;

  DqAccumulatorBlocks(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head)
      : strips_(a.dq_accum.columns / columns) {
    const bool packed = a.problem.lengths.packed_q();
    const std::int64_t first =
        packed ? sequence.q_row / rows + sequence.batch : sequence.q_row / rows;
    data_ = reinterpret_cast<float*>(a.dq_accum.data) + sequence.batch * a.dq_accum.batch_stride +
            head * a.dq_accum.head_stride + first * strips_ * block_floats;
  }

  // Register r of this lane is at block() + 32 r, for the block of 16 queries from `query` on (a
  // multiple of 16) and columns from columns · strip on. The next strip starts block_floats
  // further.
  float* block(std::int32_t query, int strip) const { return start(query, strip) + arch::lane(); }
  float* start(std::int32_t query, int strip) const {
    return data_ + (std::int64_t{query / rows} * strips_ + strip) * block_floats;
  }
  int strips() const { return strips_; }

 private:
  int strips_;
  float* data_;
};
using DqAccumulator = DqAccumulatorBlocks<8>;  // of mma.sync

}  // namespace rocflash::kernel
