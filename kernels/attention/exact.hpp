// Scores one by one, without matrix instructions: slow and simple. For s_dmask, and for outputs
// that are not finite.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/numbers.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

template <DType dtype>
float read(const std::byte* row, int column) {
  return number_at(row, dtype, column);
}

// A scale in three factors: one for each operand of a product, so that what is beyond float's range
// before scaling is none here, and the rest for their sum. The operands' is a power of two: it rounds nothing.
struct ScaleShares {
  float share, rest;

  explicit ScaleShares(float scale) {
    const float size = __builtin_fabsf(scale);
    const int exponent = static_cast<int>(__builtin_bit_cast(std::uint32_t, size) >> 23) - 127;
    const int half = exponent >> 1;
    share = size > 0 ? __builtin_bit_cast(float, (half + 127) << 23) : 0.0f;
    rest = size > 0 ? __builtin_copysignf(size / share / share, scale) : 1.0f;
  }
};

// One (sequence, head) of a problem. `any_dtype`: the problem says which; `mixed`: that of k and v may differ, as
// it does in forward alone.
template <DType dtype, class ScoreUnit = typename UnitOf<dtype>::Type, bool any_dtype = false,
          bool mixed = any_dtype>
struct ExactScores {
  using Unit = ScoreUnit;
  const Problem& problem;
  const SequenceView& sequence;
  std::int64_t head;
  std::int32_t caches;
  ScoreShape shape{problem, sequence, head};

  const std::byte* query_row(std::int32_t query) const {
    const Rows& q = arch::again(problem).q;
    return row_address(q, stored(), sequence.batch, sequence.q_row + query, head);
  }
  const std::byte* row_of(const Rows& rows, std::int32_t key) const {
    return key_row(arch::again(rows), stored_keys(), caches, sequence.batch, sequence.k_row + key,
                   problem.kv_head(head));
  }
  DType stored() const { return any_dtype ? problem.dtype : dtype; }
  DType stored_keys() const { return mixed ? problem.k.dtype : stored(); }

  // As an exponent. The query must see the key by position.
  template <class Slope = NoSlopes>
  float score(const QueryView& query, std::int32_t key, Slope slope = {}) const {
    const std::byte *q = query_row(query.index), *k = row_of(problem.k, key);
    const ScaleShares scale(arch::again(problem).scale);
    float s = 0;
    for (int column = 0; column < problem.head_dim; ++column)
      s += number_at(q, stored(), column) * scale.share *
           (number_at(k, stored_keys(), column) * scale.share);
    shape.template shape<1, Unit>(
        query, [&](int) -> float& { return s; }, [&](int) { return key; }, scale.rest, slope);
    return s;
  }
};

// The softmax of one query: sets what to subtract from scores and what to multiply outputs with,
// and returns the lse.
template <class Scores>
float exact_softmax(const Scores& scores, const QueryView& query, float& base, float& factor) {
  using Unit = typename Scores::Unit;
  const Problem& p = scores.problem;
  SoftmaxOf<Unit> softmax;
  for (std::int32_t key = query.begin; key < query.end; ++key) {
    const float score = scores.score(query, key);
    softmax.follow(score);
    softmax.sum += Unit::exp(score - softmax.base());
    if (softmax.sum != softmax.sum) break;  // it stays NaN
  }
  const bool has_sink = static_cast<bool>(p.sinks);
  const Normaliser normaliser = normalise<Unit>(softmax.reference, softmax.sum, has_sink,
                                                has_sink ? sink_of(p, scores.head) : 0);
  base = softmax.base();
  factor = normaliser.factor * (p.dropout.on() ? p.dropout.scale() : 1.0f);
  return normaliser.lse;
}

// Computes outputs of a query again that are not finite, or not to be trusted; each lane sums one column at a time. There
// are three ways to get there with ordinary results. To a matrix instruction a weight of 0 times
// infinity or NaN is NaN, but a value without weight must have no influence. A sum of values may
// overflow where their mean does not. And a product q·k may overflow where the score does not;
// `factor` is then not finite either. It is rare, so it may be slow; what matters is that it needs
// few registers.
//
// Columns [begin, end). store_lse(lse) gets an lse that is computed again, in one lane;
// store(column, output) gets outputs.
template <class Scores, class StoreLse, class Store>
void repair(const Scores& scores, const QueryView& query, float base, float factor, int begin,
            int end, StoreLse store_lse, Store store) {
  const Problem& p = scores.problem;
  if (factor - factor != 0 || products_overflow(arch::again(p))) {
    const float lse = exact_softmax(scores, query, base, factor);
    if (arch::lane() == 0) store_lse(lse);
  }
  for (int column = begin + arch::lane(); column < end; column += arch::wave_size) {
    float sum = factor - factor;  // NaN by such a sink, also without a key to carry it
    for (std::int32_t key = query.begin; key < query.end; ++key) {
      const float weight = Scores::Unit::exp(scores.score(query, key) - base) * factor;
      if (weight == 0 || (p.dropout.on() && !scores.shape.keeps(query, key))) continue;
      sum += weight * number_at(scores.row_of(p.v, key), scores.stored_keys(), column);
      if (sum != sum) break;  // it stays NaN
    }
    store(column, sum);
  }
}

template <class Scores>
void repair(const Scores& scores, const QueryView& query, float base, float factor,
            const ForwardOutputs& outputs, int begin, int end) {
  // Where results go is computed when they are there: registers are few until then.
  const SequenceView& s = scores.sequence;
  repair(
      scores, query, base, factor, begin, end,
      [&](float lse) {
        if (outputs.lse)
          arch::store(&outputs.lse.at(s.batch, scores.head, s.q_row + query.index), lse);
      },
      [&](int column, float x) {
        std::byte* to =
            row_address(outputs.out, scores.stored(), s.batch, s.q_row + query.index, scores.head);
        store_number(to, scores.stored(), column, x);
      });
}

// All columns.
template <class Scores>
void repair(const Scores& scores, const QueryView& query, float base, float factor,
            const ForwardOutputs& outputs) {
  repair(scores, query, base, factor, outputs, 0, scores.problem.value_dim);
}

}  // namespace rocflash::kernel
