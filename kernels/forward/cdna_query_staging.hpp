// Q of the CDNA ping-pong schedule: global memory → registers → LDS → MFMA fragments.
#pragma once

#include "forward/amd_common.hpp"

namespace rocflash::kernel {

// Q of a wave, from global memory to MFMA fragments: loaded in whole 128-byte lines of global
// memory, then transposed through LDS.
template <KernelSpec spec>
class QueryStaging {
  using Types = ForwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Exchange = RowExchange<Mma>;
  static constexpr int column_blocks = (spec.bucket + Exchange::columns - 1) / Exchange::columns;

 public:
  static constexpr int steps = spec.bucket / Mma::depth;

  [[gnu::always_inline]] void load(const Rows& q, const SequenceView& sequence, std::int32_t head,
                                   std::int32_t wave_begin) {
    using Block = typename Types::Block;
    const Block rows(bh_row<spec.dtype>(q, sequence.batch, sequence.q_row + wave_begin, head),
                     extent_bytes<spec.dtype, Types::wave_queries>(q, sequence.sq - wave_begin));
    ROCFLASH_UNROLL
    for (int block = 0; block < column_blocks; ++block) {
      ROCFLASH_UNROLL
      for (int n = 0; n < Exchange::rounds; ++n) {
        const typename Exchange::Chunk at(n);
        words_[block][n] =
            rows.load8(Block::offset(q, at.row, block * Exchange::columns + 8 * at.chunk));
      }
    }
  }

  // A negative softmax scale is applied to the sign of Q: the softmax takes its absolute value.
  [[gnu::always_inline]] void to_fragments(bool negate, SharedWords4* slot,
                                           RegisterFragments<Mma, steps>& q) {
    if (negate) {
      ROCFLASH_UNROLL
      for (auto& block : words_) {
        ROCFLASH_UNROLL
        for (Words4& words : block) words = negated<spec.dtype>(words);
      }
    }
    ROCFLASH_UNROLL
    for (int block = 0; block < column_blocks; ++block) {
      ROCFLASH_UNROLL
      for (int n = 0; n < Exchange::rounds; ++n)
        slot[typename Exchange::Chunk(n).offset()] = words_[block][n];
      arch::wave_fence();
      constexpr int block_steps = Exchange::columns / Mma::depth;
      ROCFLASH_UNROLL
      for (int step = 0; step < block_steps; ++step) {
        if (block * block_steps + step < steps)
          q.step_[block * block_steps + step] =
              SharedOperand<Mma, typename Exchange::Tile, Side::right>{slot}.fragment(0, step);
      }
      arch::wave_fence();
    }
  }

 private:
  Words4 words_[column_blocks][Exchange::rounds];
};

}  // namespace rocflash::kernel
