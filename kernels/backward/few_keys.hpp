// delta of a query that sees few keys, under dropout. Forward multiplied out by dropout's scale and rounded it; divided by
// the scale again it is not the mean of the values any more, and a query with all its weight on one key would not get
// gradients of 0. So the mean of dp is computed key by key where that is cheap.
#pragma once

#include <cstdint>

#include "attention/score.hpp"

namespace rocflash::kernel {

// What backward needs of one score. All of it is 0 where the weight is.
struct ScoreTerms {
  float weight = 0;  // before dropout
  float dp = 0;      // dout·v of a key that dropout keeps
  float slope = 0;   // of the score by the product
  bool kept = false;
};

inline constexpr std::int32_t few_keys = 8;

// visit(key, terms) for each key of a query that has weight. terms(key): ScoreTerms of a key that the query sees by
// position.
template <class Terms, class Visit>
void visit_weights(const QueryView& view, Terms terms, Visit visit) {
  _Pragma("clang loop unroll(disable)") for (std::int32_t key = view.begin; key < view.end; ++key) {
    const ScoreTerms of_key = terms(key);
    if (of_key.weight != 0) visit(key, of_key);
  }
}

// delta, or `otherwise` where it is as good.
template <class Terms>
float delta_of_few_keys(const Problem& p, const SequenceView& sequence, std::int32_t query,
                        float otherwise, Terms terms) {
  if (!p.dropout.on()) return otherwise;
  const QueryView view(p.visibility, sequence, query);
  if (view.end - view.begin > few_keys) return otherwise;
  float sum = 0, last = 0;
  int counted = 0;
  visit_weights(view, terms, [&](std::int32_t, const ScoreTerms& of_key) {
    sum = __builtin_fmaf(of_key.weight, of_key.dp, sum);
    last = of_key.dp;
    ++counted;
  });
  return counted == 1 && !p.sinks ? last : sum;
}

}  // namespace rocflash::kernel
