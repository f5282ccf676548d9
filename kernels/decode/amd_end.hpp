// The end of decode on AMD GPUs: each row divided by its sum, and its lse; rows that are not finite are computed again.
#pragma once

#include "attention/epilogue.hpp"
#include "attention/exact.hpp"
#include "attention/packed.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// What a wave writes: part `number` of the results, columns from `first` on, as many as its outputs have; one of
// the waves that share a part tells its lse.
struct OwnResults {
  std::int32_t number;
  int first;
  bool tells_lse;
};

// `Results` puts them where they belong: PartRows, LatentResults.
template <DType dtype, class Types, class Results>
void finish_results(const DecodeArguments& a, const DecodeItem& item, const SequenceView& sequence,
                    const DecodePart& part, OwnResults wave, const OnlineSoftmax& softmax,
                    const typename Types::Outputs& out) {
  using Mma = typename Types::Mma;
  const Problem& p = a.problem;
  const Results to{a, sequence, wave.number};
  const int own = Types::Scores::lane_column();
  const PackedRow packed(part.row_begin + own, static_cast<std::uint32_t>(a.group), item.kv_head);
  const bool in_use = own < part.rows;
  const Normaliser normaliser =
      Finish<Variant::full>(p, 0)(softmax.reference, column_sum(softmax.sum));
  if (wave.tells_lse && in_use && Types::Scores::lane_row() == 0)
    to.store_lse(packed, normaliser.lse);

  float probe = 0;  // NaN once an output is not finite
  ROCFLASH_UNROLL
  for (int r = 0; r < out.row_parts; ++r) {
    float o[Mma::results];
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; ++i) {
      o[i] = out.part[r][0][i];
      probe = __builtin_fmaf(o[i], 0.0f, probe);
      o[i] *= normaliser.factor;
    }
    Quads<Mma>::arrange(o);
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results && in_use; i += 4)
      to.store(packed, wave.first + Quads<Mma>::lane_row() + r * Mma::rows + Quads<Mma>::row(i),
               Float4{o[i], o[i + 1], o[i + 2], o[i + 3]});
  }

  constexpr std::uint64_t one_lane_per_row = (std::uint64_t{1} << Types::tile.rows) - 1;
  std::uint64_t broken =
      arch::ballot(in_use && (column_sum(probe) != 0 || products_overflow(p))) & one_lane_per_row;
  while (broken != 0) {
    const int lane = __builtin_ctzll(broken);
    broken &= broken - 1;
    const DecodeArguments& renewed = arch::again(a);
    const Problem& problem = renewed.problem;
    const PackedRow row(part.row_begin + lane, static_cast<std::uint32_t>(renewed.group),
                        item.kv_head);
    const Results results{renewed, sequence, wave.number};
    const int end = wave.first + Types::Outputs::rows;
    repair(
        ExactScores<dtype>{problem, sequence, row.head, renewed.caches},
        part.view(problem, sequence, row.query), arch::from_lane(softmax.base(), lane),
        arch::from_lane(normaliser.factor, lane), wave.first,
        end < problem.value_dim ? end : problem.value_dim,
        [&](float lse) {
          if (wave.tells_lse) results.store_lse(row, lse);
        },
        [&](int column, float x) { results.store(row, column, x); });
  }
}

}  // namespace rocflash::kernel
