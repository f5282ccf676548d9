// Softmax of one tile in decode on AMD GPUs: score modifiers, mask, exponentials, and P·V. Columns
// of the tile are packed (query, head) rows; each lane has one of them.
#pragma once

#include "arch/arch.hpp"
#include "attention/gqa_packing.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// P = exp(S · score_scale − row max) of keys [begin, end), in place. `query` has the mask bounds of
// the lane's row; `modifies_scores`: there are score modifiers.
template <class Scores, class Outputs>
void softmax_tile(const DecodeArguments& a, const SequenceView& sequence, const KeySplit& split,
                  std::int32_t kv_head, const QueryView& query, std::int32_t begin,
                  std::int32_t end, bool modifies_scores, float score_scale,
                  GenericSoftmax& softmax, Scores& scores, Outputs& out) {
  float (&s)[Scores::per_column] = scores.at[0];
  const auto at = [&](int i) -> float& { return s[i]; };
  const auto key = [&, offset = begin + Scores::lane_row()](int i) {
    return offset + Scores::row(i);
  };
  const DecodeArguments& reloaded = arch::reload_kernargs(a);  // does not fit into the SGPRs
  const Problem& p = reloaded.problem;
  // The lane's row, computed again only for score modifiers and dropout.
  const auto lane_row = [&] {
    const int column = Scores::Layout::lane_column(arch::opaque_lane());
    return PackedRow(split.row_begin + column, static_cast<std::uint32_t>(reloaded.gqa_group),
                     kv_head);
  };
  if (modifies_scores) {
    const PackedRow row = lane_row();
    ScoreMod(p, sequence, row.head)
        .template apply<Scores::per_column, FastNaturalLogDomain>(OneQuery{row.query}, key, at);
  }
  if (modifies_scores || begin < split.common_begin || end > split.common_end) {
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::per_column; ++i) s[i] = query.attends_to(key(i)) ? s[i] : -infinity;
  }

  const float largest = column_maximum(scores, 0) * score_scale;
  if (arch::any(softmax.needs_rescale(largest))) out.scale(softmax.rescale(largest));
  softmax.sum += exp_and_sum<FastNaturalLogDomain>(scores, 0, score_scale, softmax.base());
  constexpr int run = layout::results_within<typename Scores::Layout>(dropout_keys);
  if (p.dropout.on()) {
    const PackedRow row = lane_row();
    ScoreMod(p, sequence, row.head).template drop<Scores::per_column, run>(row.query, key, at);
  }
}

// O += P·V, scheduled in groups of two row blocks: more fragments in flight would take VGPRs from
// the next tile.
template <class V, class P, class Outputs>
void accumulate_pv(Outputs& out, const V& v, const P& weights, int keys) {
  using Mma = typename Outputs::Mma;
  ROCFLASH_UNROLL
  for (int step = 0; step < keys / Mma::depth; ++step) {
    const typename Mma::Operand right = weights.fragment(0, step);
    ROCFLASH_UNROLL
    for (int row = 0; row < Outputs::row_parts; ++row) {
      out.part[row][0] = Mma::multiply(v.fragment(row, step), right, out.part[row][0]);
      if (row % 2 == 1) arch::sched_barrier();
    }
  }
}

}  // namespace rocflash::kernel
