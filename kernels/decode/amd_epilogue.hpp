// Epilogue of decode on AMD GPUs: normalization, LSE, stores, recomputation of non-finite rows.
#pragma once

#include "attention/epilogue.hpp"
#include "attention/exact_recompute.hpp"
#include "attention/gqa_packing.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// What a wave writes: columns of the partial result of one split. One of the waves that share a
// split stores its LSE.
struct WaveResults {
  std::int32_t split;
  int first_column;
  bool stores_lse;
};

// `Results` is the destination: SplitRows or MlaResults.
template <DType dtype, class Types, class Results>
void store_partial_results(const DecodeArguments& a, const DecodeWorkTile& item,
                           const SequenceView& sequence, const KeySplit& keys, WaveResults wave,
                           const GenericSoftmax& softmax, const typename Types::Outputs& out) {
  using Mma = typename Types::Mma;
  const Problem& p = a.problem;
  const Results to{a, sequence, wave.split};
  const int lane_row = Types::Scores::lane_column();
  const PackedRow packed(keys.row_begin + lane_row, static_cast<std::uint32_t>(a.gqa_group),
                         item.kv_head);
  const bool in_use = lane_row < keys.rows;
  const float sum = column_sum(softmax.sum);
  const Normalizer normalizer =
      SoftmaxFinalizer<Variant::generic>(p, 0, has_score_modifiers(p))(softmax.row_max, sum);
  if (wave.stores_lse && in_use && Types::Scores::lane_row() == 0)
    to.store_lse(packed, SplitLse::of(softmax.row_max, sum, normalizer.lse));

  float probe = normalizer.factor * 0.0f;  // NaN once an output is not finite
  ROCFLASH_UNROLL
  for (int r = 0; r < out.row_parts; ++r) {
    float o[Mma::results];
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; ++i) {
      o[i] = out.part[r][0][i];
      probe = __builtin_fmaf(o[i], 0.0f, probe);
      o[i] *= normalizer.factor;
    }
    Quads<Mma>::arrange(o);
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results && in_use; i += 4)
      to.store(packed,
               wave.first_column + Quads<Mma>::lane_row() + r * Mma::rows + Quads<Mma>::row(i),
               Float4{o[i], o[i + 1], o[i + 2], o[i + 3]});
  }

  constexpr std::uint64_t one_lane_per_row = (std::uint64_t{1} << Types::tile.rows) - 1;
  std::uint64_t non_finite =
      arch::ballot(in_use && (column_sum(probe) != 0 || products_overflow(p))) & one_lane_per_row;
  while (non_finite != 0) {
    const int lane = __builtin_ctzll(non_finite);
    non_finite &= non_finite - 1;
    const DecodeArguments& reloaded = arch::reload_kernargs(a);
    const Problem& problem = reloaded.problem;
    const PackedRow row(keys.row_begin + lane, static_cast<std::uint32_t>(reloaded.gqa_group),
                        item.kv_head);
    const Results results{reloaded, sequence, wave.split};
    const int end = wave.first_column + Types::Outputs::rows;
    recompute_row(
        ExactScores<dtype>{problem, sequence, row.head, reloaded.caches},
        keys.view(problem, sequence, row.query), wave.first_column,
        end < problem.value_dim ? end : problem.value_dim,
        [&](SplitLse x) {
          if (wave.stores_lse) results.store_lse(row, x);
        },
        [&](int column, float x) { results.store(row, column, x); });
  }
}

}  // namespace rocflash::kernel
