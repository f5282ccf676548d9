// Postprocess on AMD GPUs: converts the f32 dQ accumulator to dQ, times the softmax scale and the
// dropout scale. Non-finite rows, and all rows where products may overflow, are recomputed.
//
// Each workgroup has tile.owned queries of one head, divided among its waves. Each lane converts
// four adjacent columns of a row at a time.
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "backward/dq_accumulate.hpp"
#include "backward/exact_recompute.hpp"
#include "table/backward.hpp"

namespace rocflash::kernel {

// Stores four elements of a row with `left` columns left, at any alignment.
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
void backward_postprocess(const BackwardArguments& a) {
  constexpr BackwardTile tile = backward_tile(this_family, spec);
  constexpr int wave_rows = tile.owned * arch::wave_size / tile.threads;
  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t first = item.block * tile.owned + arch::thread() / arch::wave_size * wave_rows;
  const auto rows = static_cast<std::int32_t>(smaller(sequence.sq - first, wave_rows));
  const float factor = p.scale * (p.dropout.on() ? p.dropout.scale() : 1.0f);
  const std::int32_t quads = a.dq_accum.columns / 4;
  for (std::int32_t n = 0; n < rows * quads; n += arch::wave_size) {
    const std::int32_t row = (n + arch::lane()) / quads;
    const int column = (n + arch::lane()) % quads * 4;
    bool non_finite = false;
    if (row < rows && column < p.head_dim) {
      const std::int64_t at = sequence.q_row + first + row;
      const Float4 sum = arch::load(reinterpret_cast<const Float4*>(
          dq_address<arch::Mma<spec.dtype>>(a, sequence, item.head, first + row, column)));
      store_rounded<spec.dtype>(reinterpret_cast<std::uint16_t*>(row_address<spec.dtype>(
                                    a.tensors.dq, sequence.batch, at, item.head)) +
                                    column,
                                sum * (factor * inverse_subnormal_scale(this_family, spec.dtype)),
                                p.head_dim - column);
      const Float4 probe = sum * 0.0f;  // NaN where a sum is not finite
      non_finite = probe[0] + probe[1] + probe[2] + probe[3] != 0 || products_overflow(p);
    }
    for (std::uint64_t left = arch::ballot(non_finite); left != 0;) {
      const std::int32_t again = (n + __builtin_ctzll(left)) / quads;
      exact_dq<spec.dtype>(arch::reload_kernargs(a), sequence, item.head, first + again, factor);
      left &= ~arch::ballot(row == again);
    }
  }
}

}  // namespace rocflash::kernel
