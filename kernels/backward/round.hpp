// dq from the sums that backward_fused has added up: times the scale and dropout's scale, rounded. Rows
// whose sums are not finite, or not to be trusted, are computed again one by one.
//
// Each workgroup has tile.owned queries of one head, each wave a share of them, and each lane four
// neighbouring columns of a row at a time.
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "attention/work.hpp"
#include "backward/exact.hpp"
#include "backward/sums.hpp"
#include "table/backward.hpp"

namespace rocflash::kernel {

// Four numbers of a row that has `left` from there on, at any address.
template <DType dtype>
void store_rounded(std::uint16_t* to, Float4 x, int left) {
  struct Unaligned {
    Words2 words __attribute__((packed, aligned(2)));
  };
  const Words2 words{narrow_pair<dtype>(x[0], x[1]), narrow_pair<dtype>(x[2], x[3])};
  if (left >= 4) {
    arch::store(reinterpret_cast<Unaligned*>(to), Unaligned{words});
    return;
  }
  for (int e = 0; e < left; ++e)
    arch::store(to + e, static_cast<std::uint16_t>(words[e / 2] >> (16 * (e % 2))));
}

template <KernelSpec spec>
void backward_round(const BackwardArguments& a) {
  constexpr BackwardTile tile = backward_tile(this_family, spec);
  constexpr int wave_rows = tile.owned * arch::wave_size / tile.threads;
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t first = item.block * tile.owned + arch::thread() / arch::wave_size * wave_rows;
  const auto rows = static_cast<std::int32_t>(smaller(sequence.sq - first, wave_rows));
  const float factor = p.scale * (p.dropout.on() ? p.dropout.scale() : 1.0f);
  const std::int32_t quads = a.dq_sums.columns / 4;
  for (std::int32_t n = 0; n < rows * quads; n += arch::wave_size) {
    const std::int32_t row = (n + arch::lane()) / quads;
    const int column = (n + arch::lane()) % quads * 4;
    bool broken = false;
    if (row < rows && column < p.head_dim) {
      const std::int64_t at = sequence.q_row + first + row;
      const Float4 sum = arch::load(reinterpret_cast<const Float4*>(
          sum_of<arch::Mma<spec.dtype>>(a, sequence, item.head, first + row, column)));
      store_rounded<spec.dtype>(reinterpret_cast<std::uint16_t*>(row_address<spec.dtype>(
                                    a.tensors.dq, sequence.batch, at, item.head)) +
                                    column,
                                sum * (factor * lowering(this_family, spec.dtype)),
                                p.head_dim - column);
      const Float4 probe = sum * 0.0f;  // NaN where a sum is not finite
      broken = probe[0] + probe[1] + probe[2] + probe[3] != 0 || products_overflow(p);
    }
    for (std::uint64_t left = arch::ballot(broken); left != 0;) {
      const std::int32_t again = (n + __builtin_ctzll(left)) / quads;
      exact_dq<spec.dtype>(arch::again(a), sequence, item.head, first + again, factor);
      left &= ~arch::ballot(row == again);
    }
  }
}

}  // namespace rocflash::kernel
