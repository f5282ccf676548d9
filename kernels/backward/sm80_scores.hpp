// From products to P and dS in the registers of an NVIDIA warp, for the kernels of sm80_fused.hpp
// and sm80_dq.hpp.
#pragma once

#include "arch/arch.hpp"
#include "attention/score_mod.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

// Options of all scores, evaluated once.
template <Variant variant, class Unit_>
struct ScoreOptions {
  using Unit = Unit_;
  static constexpr bool generic = variant == Variant::generic;
  bool has_score_mod, dropout;
  float unit;  // from products to exponents, without score modifiers

  explicit ScoreOptions(const Problem& p)
      : has_score_mod(generic && has_score_modifiers(p)),
        dropout(generic && p.dropout.on()),
        unit(p.scale * Unit::from_natural) {}
};

// Statistics of one query of a warp's scores.
struct ScoreRow {
  std::int32_t query;
  float base, delta;
  float share = 1;  // of RowSoftmax; 1 without score modifiers
};

// Keep bits of 32 keys from `first` on for a query whose row a quad of lanes shares: each lane
// draws for eight keys.
inline std::uint32_t kept_by_row(const ScoreModGradient& score_mod, std::int32_t query,
                                 std::int32_t first) {
  const int part = arch::lane() % row_lanes * dropout_keys;
  return row_union(score_mod.kept(query, first + part) << part);
}

// Row i of s = q·k becomes P after dropout, row i of d = dout·v becomes dS. Nothing is masked by
// position yet. The tile's first key is `begin`.
template <Variant variant, class Unit, class Scores>
void compute_ds_row(const ScoreOptions<variant, Unit>& options, const Problem& p,
                    const SequenceView& sequence, std::int64_t head, std::int32_t begin, int lane,
                    const ScoreRow& row, int i, Scores& s, Scores& d) {
  constexpr int count = Scores::lane_columns;
  if (options.generic && (options.has_score_mod || options.dropout)) {
    const auto key_of = [first = begin + Scores::lane_column(lane)](int n) {
      return first + Scores::column(n);
    };
    const ScoreModGradient score_mod(p, sequence, head);
    float slope[count];
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) slope[n] = 1;
    if constexpr (variant == Variant::generic) {
      if (options.has_score_mod)
        score_mod.template apply_scaled<count, Unit>(
            OneQuery{row.query}, key_of, [&](int n) -> float& { return s.at(i, n); }, p.scale,
            [&](int n, float x) { slope[n] *= x; });
    }
    const float unit = options.has_score_mod ? 1 : options.unit;
    std::uint32_t bits = ~0u;
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      if (options.dropout && n % 8 == 0)
        bits = kept_by_row(score_mod, row.query, begin + Scores::column(n)) >>
               Scores::lane_column(lane);
      const bool kept = (bits >> Scores::column(n % 8) & 1u) != 0;
      const float weight = Unit::fine_exp(__builtin_fmaf(s.at(i, n), unit, -row.base)) * row.share;
      const float gradient = weight * ((kept ? d.at(i, n) : 0.0f) - row.delta) * slope[n];
      s.at(i, n) = kept ? weight : 0.0f;
      d.at(i, n) = weight == 0 ? 0.0f : gradient;
    }
  } else {
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      s.at(i, n) = Unit::fine_exp(__builtin_fmaf(s.at(i, n), options.unit, -row.base));
      d.at(i, n) = s.at(i, n) * (d.at(i, n) - row.delta);
    }
  }
}

// Replaces the scores of keys outside the query's mask bounds with `masked`.
template <class Scores>
void apply_mask(const QueryView& query, std::int32_t begin, int lane, int i, Scores& scores,
                float masked) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Scores::lane_columns; ++n) {
    float& x = scores.at(i, n);
    x = query.attends_to(begin + Scores::lane_column(lane) + Scores::column(n)) ? x : masked;
  }
}

}  // namespace rocflash::kernel
