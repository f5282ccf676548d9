// What decode on AMD GPUs makes of the scores of one tile: options, visibility, weights, and their product with the
// values. Columns of the tile are pairs of query and head; each lane has one of them.
#pragma once

#include "arch/arch.hpp"
#include "attention/packed.hpp"
#include "attention/score.hpp"
#include "attention/softmax.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// The scores of keys [begin, end) become weights, exp2(scores · unit − reference). `query` is what the lane's row
// sees; `shaped`: there are options that change scores.
template <class Scores, class Outputs>
void weights_of_scores(const DecodeArguments& a, const SequenceView& sequence,
                       const DecodePart& part, std::int32_t kv_head, const QueryView& query,
                       std::int32_t begin, std::int32_t end, bool shaped, float unit,
                       OnlineSoftmax& softmax, Scores& scores, Outputs& out) {
  float (&s)[Scores::per_column] = scores.at[0];
  const auto at = [&](int i) -> float& { return s[i]; };
  const auto key = [&, offset = begin + Scores::lane_row()](int i) {
    return offset + Scores::row(i);
  };
  const DecodeArguments& again = arch::again(a);  // scalar registers do not hold all of it
  const Problem& p = again.problem;
  // The lane's row, computed again for the options that need it.
  const auto own_row = [&] {
    const int column = Scores::Layout::lane_column(arch::renewed_lane());
    return PackedRow(part.row_begin + column, static_cast<std::uint32_t>(again.group), kv_head);
  };
  const auto own_query = [&](const PackedRow& row) {
    QueryView view = query;
    view.index = row.query;
    return view;
  };
  if (shaped) {
    const PackedRow row = own_row();
    ScoreShape(p, sequence, row.head).template shape<Scores::per_column>(own_query(row), at, key);
  }
  if (shaped || begin < part.common_begin || end > part.common_end) {
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::per_column; ++i) s[i] = query.sees(key(i)) ? s[i] : -infinity;
  }

  const float largest = column_maximum(scores, 0) * unit;
  if (arch::any(softmax.behind(largest))) out.scale(softmax.follow(largest));
  softmax.sum += exp2_and_sum(scores, 0, unit, softmax.base());
  constexpr int run = layout::results_within<typename Scores::Layout>(dropout_keys);
  if (p.dropout.on()) {
    const PackedRow row = own_row();
    ScoreShape(p, sequence, row.head)
        .template drop<Scores::per_column, run>(own_query(row), at, key);
  }
}

// out += Vᵀ · Pᵀ, a few steps at a time: fragments that are read further ahead would take registers that the
// tile on its way needs.
template <class V, class P, class Outputs>
void add_values(Outputs& out, const V& v, const P& weights, int keys) {
  using Mma = typename Outputs::Mma;
  ROCFLASH_UNROLL
  for (int step = 0; step < keys / Mma::depth; ++step) {
    const typename Mma::Operand right = weights.fragment(0, step);
    ROCFLASH_UNROLL
    for (int row = 0; row < Outputs::row_parts; ++row) {
      out.part[row][0] = Mma::multiply(v.fragment(row, step), right, out.part[row][0]);
      if (row % 2 == 1) arch::end_phase();
    }
  }
}

}  // namespace rocflash::kernel
