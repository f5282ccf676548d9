// Gradients one by one, without matrix instructions: slow and simple, for rows whose sums are not finite
// or not to be trusted. There are several ways to get there with ordinary results. To a matrix
// instruction 0 times infinity or NaN is NaN, but a number without weight must have no influence. A
// gradient of a score may leave the range of the dtype that it is rounded to. And a product q·k may
// overflow where the score does not.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/exact.hpp"
#include "backward/few_keys.hpp"
#include "backward/gradient.hpp"

namespace rocflash::kernel {

// One (sequence, head) of a problem. `plain`: it has no options, and the compiler knows it.
template <DType dtype, bool plain = false>
struct ExactGradient {
  using Unit = typename UnitOf<dtype>::Type;
  const BackwardArguments& arguments;
  const SequenceView& sequence;
  std::int64_t head;
  GradientShape shape{arguments.problem, sequence, head};

  struct Pair {
    float weight = 0;    // after dropout
    float gradient = 0;  // of the score
  };

  // The query must see the key by position.
  Pair at(std::int32_t query, std::int32_t key) const {
    const ScoreTerms terms = this->terms(query, key);
    if (terms.weight == 0) return {};
    const BackwardArguments& a = arch::again(arguments);
    const float delta = arch::load(&a.delta.at(sequence.batch, head, sequence.q_row + query));
    return {terms.kept ? terms.weight : 0.0f, terms.weight * (terms.dp - delta) * terms.slope};
  }
  ScoreTerms terms(std::int32_t query, std::int32_t key) const {
    const BackwardArguments& a = arch::again(arguments);
    const Problem& p = a.problem;
    if (plain && (p.mask || p.bias || p.alibi || p.softcap > 0 || p.dropout.on()))
      __builtin_unreachable();
    const std::byte *q = query_row(p.q, query), *k = key_row_of(p.k, key);
    const ScaleShares scale(p.scale);
    float score = dot(q, k, p.head_dim, scale.share), slope = 1;
    shape.template shape<1, Unit>([&](int) { return query; }, [&](int) { return key; },
                                  [&](int) -> float& { return score; },
                                  [&](int, float x) { slope = x; }, scale.rest);
    const std::int64_t row = sequence.q_row + query;
    const float lse =
        statistic(arch::load(&a.tensors.lse.at(sequence.batch, head, row)), Unit::of_natural);
    const float weight = score == -infinity ? 0.0f : Unit::fine_exp(score - lse);
    if (weight == 0) return {};
    const bool kept = !p.dropout.on() || shape.keeps(query, key);
    const float dp =
        kept ? dot(query_row(a.tensors.dout, query), key_row_of(p.v, key), p.value_dim, 1) : 0.0f;
    return {weight, dp, slope, kept, is_all_of(weight, lse)};
  }

  std::byte* query_row(const Rows& rows, std::int32_t query) const {
    return row_address<dtype>(rows, sequence.batch, sequence.q_row + query, head);
  }
  std::byte* key_row_of(const Rows& rows, std::int32_t key) const {
    return row_address<dtype>(rows, sequence.batch, sequence.k_row + key,
                              arguments.problem.kv_head(head));
  }

 private:
  static float dot(const std::byte* x, const std::byte* y, int columns, float factor) {
    float sum = 0;
    _Pragma("clang loop unroll(disable)") for (int c = 0; c < columns; ++c) sum +=
        read<dtype>(x, c) * factor * (read<dtype>(y, c) * factor);
    return sum;
  }
};

template <DType dtype>
OnlyKey only_key(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
                 std::int32_t query) {
  return only_key(a.problem, sequence, query, [&](std::int32_t key) {
    // What the terms need is loaded for them alone: most calls ask for none.
    const BackwardArguments& again = arch::again(a);
    return ExactGradient<dtype>{again, sequence, head}.terms(query, key);
  });
}

template <DType dtype>
void store_delta(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
                 std::int32_t query, float otherwise) {
  float delta = otherwise;
  if (a.problem.dropout.on()) {
    const OnlyKey only = only_key<dtype>(a, sequence, head, query);
    if (only.key >= 0) delta = only.dp;
  }
  arch::store(&a.delta.at(sequence.batch, head, sequence.q_row + query), statistic(delta, 1));
}

// A wave's sum over [begin, end), added to `sum`, of term(n) · column `column` of row(n): each lane
// computes one term at a time and all of them take it; each lane has a column of its own. Terms of 0 do
// not count, whatever they would be multiplied with.
template <DType dtype, class Term, class Row>
float add_terms(float sum, std::int32_t begin, std::int32_t end, int column, int columns, Term term,
                Row row) {
  _Pragma("clang loop unroll(disable)") for (std::int32_t first = begin; first < end;
                                             first += arch::wave_size) {
    const std::int32_t own = first + arch::lane();
    const float mine = own < end ? term(own) : 0.0f;
    const std::int32_t count = end - first < arch::wave_size ? end - first : arch::wave_size;
    _Pragma("clang loop unroll(disable)") for (std::int32_t n = 0; n < count; ++n) {
      const float factor = arch::from_lane(mine, n);
      if (factor != 0 && column < columns) sum += factor * read<dtype>(row(first + n), column);
    }
  }
  return sum;
}

// For each column of a row of gradients, one lane: sum(column) is computed by the wave together.
template <DType dtype, class Sum>
void store_exact(std::byte* row, int columns, Sum sum) {
  _Pragma("clang loop unroll(disable)") for (int first = 0; first < columns;
                                             first += arch::wave_size) {
    const int column = first + arch::lane();
    const float x = sum(column);
    if (column < columns) store_number(row, dtype, column, x);
  }
}

// dq of one query, by a wave. `factor` is what sums are multiplied with: the scale, and dropout's.
template <DType dtype, bool plain = false>
void exact_dq(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
              std::int32_t query, float factor) {
  const ExactGradient<dtype, plain> exact{a, sequence, head};
  const QueryView view(a.problem.visibility, sequence, query);
  store_exact<dtype>(exact.query_row(a.tensors.dq, query), a.problem.head_dim, [&](int column) {
    return add_terms<dtype>(
        0, view.begin, view.end, column, a.problem.head_dim,
        [&](std::int32_t key) { return exact.at(query, key).gradient * factor; },
        [&](std::int32_t key) { return exact.key_row_of(a.problem.k, key); });
  });
}

// dk and dv of one key, or one of them, by a wave. One loop serves both, which keeps the code short.
template <DType dtype>
void exact_dk_dv(const BackwardArguments& a, const SequenceView& sequence, std::int64_t kv_head,
                 std::int32_t key, bool want_k, bool want_v) {
  const KeyView view(a.problem.visibility, sequence, key);
  const std::int64_t group = a.problem.group();
  _Pragma("clang loop unroll(disable)") for (int result = 0; result < 2; ++result) {
    const bool dk = result == 0;
    const Rows &to = dk ? a.tensors.dk : a.tensors.dv, &from = dk ? a.problem.q : a.tensors.dout;
    if (!to || !(dk ? want_k : want_v)) continue;
    const float factor = a.problem.dropout.scale() * (dk ? a.problem.scale : 1.0f);
    std::byte* row = row_address<dtype>(to, sequence.batch, sequence.k_row + key, kv_head);
    store_exact<dtype>(row, to.columns, [&](int column) {
      float sum = 0;
      for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const ExactGradient<dtype> exact{a, sequence, head};
        sum = add_terms<dtype>(
            sum, view.begin, view.end, column, to.columns,
            [&](std::int32_t query) {
              const auto pair = exact.at(query, key);
              return (dk ? pair.gradient : pair.weight) * factor;
            },
            [&](std::int32_t query) { return exact.query_row(from, query); });
      }
      return sum;
    });
  }
}

}  // namespace rocflash::kernel
