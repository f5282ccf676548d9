// Queries with all their weight on one key, where out is not quite that key's value: under dropout forward multiplied it by
// a scale and rounded it, and f32 by a matrix unit may lose the last bit of a number. Gradients of such a query are 0, so its
// delta has to be the very dp of the key. It is looked for where that is cheap: among few keys.
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
  bool is_all = false;  // the weight is all that the query has
};

// Whether a weight is 1 but for rounding. It is less where the query has keys that the problem has not: out and lse of
// backward may be those of a whole sequence, k and v the part of it that lies on this device.
inline bool is_all_of(float weight, float lse) {
  const float rounding = 0x1p-16f * (1 + __builtin_fabsf(lse));
  return __builtin_fabsf(weight - 1) <= rounding;
}

inline bool may_differ_from_value(const Problem& p) {
  return p.dropout.on() || p.dtype == DType::f32;
}

inline constexpr std::int32_t few_keys = 8;

// A key that has all the weight of a query and that dropout keeps; -1: there is none, or the query sees too many to tell.
struct OnlyKey {
  std::int32_t key = -1;
  float dp = 0;
};

// terms(key): ScoreTerms of a key that the query sees by position.
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
