// Where the f32 sums of dq lie on NVIDIA GPUs and on RDNA, to which all workgroups that own keys add. A block of
// 16 queries by as many columns as a product has, 8 or 16, is one after the other in the order of the product's
// results: first number 0 of all lanes, then number 1. So a wave adds to whole lines of 128 bytes. Where warpgroups add blocks by copies
// from shared memory, the four numbers of a lane are together (BackwardArguments::sums_by_lane).
//
// Each sequence starts a block of its own, also in packed tensors: the plan leaves room for one block more
// per sequence.
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

template <int columns_>
class SumsInBlocks {
 public:
  static constexpr int rows = 16, columns = columns_, block_floats = rows * columns;

  SumsInBlocks(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head)
      : strips_(a.dq_sums.columns / columns) {
    const bool packed = a.problem.lengths.packed_q();
    const std::int64_t first =
        packed ? sequence.q_row / rows + sequence.batch : sequence.q_row / rows;
    data_ = reinterpret_cast<float*>(a.dq_sums.data) + sequence.batch * a.dq_sums.batch_stride +
            head * a.dq_sums.head_stride + first * strips_ * block_floats;
  }

  // Number r of this lane is at 32 r of this, for the block of 16 queries from `query` on (a multiple of
  // 16) and of the columns from columns · strip on. The next strip is block_floats further on.
  float* block(std::int32_t query, int strip) const { return start(query, strip) + arch::lane(); }
  float* start(std::int32_t query, int strip) const {
    return data_ + (std::int64_t{query / rows} * strips_ + strip) * block_floats;
  }
  int strips() const { return strips_; }

 private:
  int strips_;
  float* data_;
};
using DqSums = SumsInBlocks<8>;  // of mma.sync

}  // namespace rocflash::kernel
