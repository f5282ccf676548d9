// Rows that have all their weight on one key. Their dS is 0, so delta must have the same bits as dP
// of that key. delta = rowsum(dO·O) may differ in the last bits: under dropout O was scaled and
// rounded, and f32 matrix instructions may lose the last bit. Such keys are searched only in rows
// with few visible keys, where that is cheap.
#pragma once

#include <cstdint>

#include "attention/exact_recompute.hpp"
#include "attention/score_mod.hpp"
#include "backward/row_statistics.hpp"

namespace rocflash::kernel {

// What backward needs of one score. All members are 0 where the weight is 0.
struct ScoreTerms {
  float weight = 0;  // before dropout
  float dp = 0;      // dout·v of a key that dropout keeps
  float slope = 0;   // of the score by the product
  bool kept = false;
  bool is_all = false;  // the key has all the weight of the query
};

// Whether a weight is 1 up to rounding. It is less than 1 where the query attends to keys on other
// devices: out and lse may be those of the whole sequence, k and v only a local part.
inline bool is_all_of(float weight, const RowSoftmax& softmax) {
  const float rounding =
      0x1p-16f * (1 + (softmax.share == 1 ? __builtin_fabsf(softmax.base) : 0.0f));
  return __builtin_fabsf(weight - 1) <= rounding;
}

inline bool may_differ_from_value(const Problem& p) {
  return p.dropout.on() || p.dtype == DType::f32;
}

// One lane computes the softmax of a row with an unresolved lse from its scores, without matrix
// instructions.
template <class Scores>
void store_row_softmax(const BackwardArguments& a, const Scores& scores, std::int32_t query) {
  const SequenceView& sequence = scores.sequence;
  const std::int64_t row = sequence.q_row + query;
  const float lse = arch::load(&a.tensors.lse.at(sequence.batch, scores.head, row));
  if (!is_unresolved(lse)) return;
  float base;
  const Normalizer normalizer =
      exact_softmax(scores, QueryView(a.problem.visibility, sequence, query), base);
  RowSoftmax::store(a, sequence.batch, scores.head, row, base, normalizer, false);
}

inline constexpr std::int32_t few_keys = 8;

// The key that has all the weight of a query and is kept by dropout. -1: no such key, or too many
// visible keys to search.
struct OnlyKey {
  std::int32_t key = -1;
  float dp = 0;
};

// terms(key) returns the ScoreTerms of a key within the query's mask bounds.
template <class Terms>
OnlyKey only_key(const Problem& p, const SequenceView& sequence, std::int32_t query, Terms terms) {
  const QueryView view(p.visibility, sequence, query);
  if (p.sinks || view.end - view.begin > few_keys) return {};
  OnlyKey found;
  int counted = 0;
  _Pragma("clang loop unroll(disable)") for (std::int32_t key = view.begin; key < view.end; ++key) {
    const ScoreTerms of_key = terms(key);
    if (of_key.weight == 0) continue;
    ++counted;
    if (of_key.kept && of_key.is_all) found = {key, of_key.dp};
  }
  return counted == 1 ? found : OnlyKey{};
}

}  // namespace rocflash::kernel
