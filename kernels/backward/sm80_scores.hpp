// From products to weights and gradients of scores, in the registers of an NVIDIA warp: shared by kernels
// that own keys and by those that own queries.
#pragma once

#include "arch/arch.hpp"
#include "attention/score.hpp"
#include "backward/gradient.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

// What is asked of all scores, looked up once.
template <Variant variant, class Unit_>
struct ScoreOptions {
  using Unit = Unit_;
  static constexpr bool full = variant == Variant::full;
  bool shaped, dropout;
  float unit;  // from products to exponents, where nothing shapes them

  explicit ScoreOptions(const Problem& p)
      : shaped(full && (p.scale == 0 || p.softcap > 0 || p.alibi || p.bias || p.mask)),
        dropout(full && p.dropout.on()),
        unit(p.scale * Unit::of_natural) {}
};

// One row of a warp's scores: a query.
struct ScoreRow {
  std::int32_t query;
  float lse, delta;
};

// Dropout of 32 keys from `first` on for a query that four neighbouring lanes share: each lane draws for
// eight of them. One bit per key.
inline std::uint32_t kept_by_row(const GradientShape& shape, std::int32_t query,
                                 std::int32_t first) {
  const int part = arch::lane() % row_lanes * dropout_keys;
  return row_union(shape.kept(query, first + part) << part);
}

// Row i of the products s = q·k and d = dout·v becomes weights after dropout, and gradients of scores,
// whether or not the query sees the keys. The tile's first key is `begin`.
template <Variant variant, class Unit, class Scores>
void differentiate_row(const ScoreOptions<variant, Unit>& options, const Problem& p,
                       const SequenceView& sequence, std::int64_t head, std::int32_t begin,
                       int lane, const ScoreRow& row, int i, Scores& s, Scores& d) {
  constexpr int count = Scores::lane_columns;
  if (options.full && (options.shaped || options.dropout)) {
    const auto key_of = [first = begin + Scores::lane_column(lane)](int n) {
      return first + Scores::column(n);
    };
    const GradientShape shape(p, sequence, head);
    float slope[count];
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) slope[n] = 1;
    if (options.shaped)
      shape.template shape<count, Unit>([&](int) { return row.query; }, key_of,
                                        [&](int n) -> float& { return s.at(i, n); },
                                        [&](int n, float x) { slope[n] = x; }, p.scale);
    const float unit = options.shaped ? 1 : options.unit;
    std::uint32_t bits = ~0u;
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      if (options.dropout && n % 8 == 0)
        bits =
            kept_by_row(shape, row.query, begin + Scores::column(n)) >> Scores::lane_column(lane);
      const bool kept = (bits >> Scores::column(n % 8) & 1u) != 0;
      const float weight = Unit::fine_exp(__builtin_fmaf(s.at(i, n), unit, -row.lse));
      const float gradient = weight * ((kept ? d.at(i, n) : 0.0f) - row.delta) * slope[n];
      s.at(i, n) = kept ? weight : 0.0f;
      d.at(i, n) = weight == 0 ? 0.0f : gradient;
    }
  } else {
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      s.at(i, n) = Unit::fine_exp(__builtin_fmaf(s.at(i, n), options.unit, -row.lse));
      d.at(i, n) = s.at(i, n) * (d.at(i, n) - row.delta);
    }
  }
}

// Hides the keys that the query of row i does not see: puts `hidden` in their places.
template <class Scores>
void hide_keys(const QueryView& query, std::int32_t begin, int lane, int i, Scores& scores,
               float hidden) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Scores::lane_columns; ++n) {
    float& x = scores.at(i, n);
    x = query.sees(begin + Scores::lane_column(lane) + Scores::column(n)) ? x : hidden;
  }
}

}  // namespace rocflash::kernel
