// Recomputation of non-finite gradient rows with scalar FMAs: slow, but exact. Rows get here with
// ordinary results, too. A matrix instruction makes NaN of 0 times infinity or NaN, but a masked
// element must have no influence. dS may overflow the dtype that it is rounded to. A product q·k
// may overflow where the score does not.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/exact_recompute.hpp"
#include "attention/score_mod.hpp"
#include "backward/single_key_rows.hpp"

namespace rocflash::kernel {

// One (batch, head) slice. `specialized`: the compiler may assume that the problem has no score
// modifiers and no dropout.
template <DType dtype, bool specialized = false>
struct ExactGradient {
  using Unit = NaturalLogDomain;
  const BackwardArguments& arguments;
  const SequenceView& sequence;
  std::int64_t head;
  ScoreModGradient score_mod{arguments.problem, sequence, head};

  struct Pair {
    float weight = 0;    // after dropout
    float gradient = 0;  // of the score
  };

  // The key must be within the query's mask bounds.
  Pair at(std::int32_t query, std::int32_t key) const {
    const ScoreTerms terms = this->terms(query, key);
    if (terms.weight == 0) return {};
    const BackwardArguments& a = arch::reload_kernargs(arguments);
    const float delta = arch::load(&a.delta.at(sequence.batch, head, sequence.q_row + query));
    return {terms.kept ? terms.weight : 0.0f, terms.weight * (terms.dp - delta) * terms.slope};
  }
  ScoreTerms terms(std::int32_t query, std::int32_t key) const {
    const BackwardArguments& a = arch::reload_kernargs(arguments);
    const Problem& p = a.problem;
    if (specialized && (ScoreModifiers::any_besides_scale(p) || has_feature<Feature::dropout>(p)))
      __builtin_unreachable();
    const std::byte *q = query_row(p.q, query), *k = key_row_of(p.k, key);
    const ScaleShares scale(p.scale);
    float score = dot(q, k, p.head_dim, scale.share), slope = 1;
    score_mod.template apply_scaled<1, Unit>(
        OneQuery{query}, [&](int) { return key; }, [&](int) -> float& { return score; }, scale.rest,
        [&](int, float x) { slope *= x; });
    const std::int64_t row = sequence.q_row + query;
    const RowSoftmax softmax(a, sequence.batch, head, row);
    const float weight =
        score == -infinity ? 0.0f : Unit::fine_exp(score - softmax.base) * softmax.share;
    if (weight == 0) return {};
    const bool kept = !p.dropout.on() || score_mod.keeps(query, key);
    const float dp =
        kept ? dot(query_row(a.tensors.dout, query), key_row_of(p.v, key), p.value_dim, 1) : 0.0f;
    return {weight, dp, slope, kept, is_all_of(weight, softmax)};
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
    // Reload the kernel arguments here: most calls compute no terms.
    const BackwardArguments& again = arch::reload_kernargs(a);
    return ExactGradient<dtype>{again, sequence, head}.terms(query, key);
  });
}

template <DType dtype>
void store_delta(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
                 std::int32_t query, float fallback, bool has_row_softmax) {
  if (!has_row_softmax)
    store_row_softmax(a, ExactScores<dtype>{a.problem, sequence, head, 0}, query);
  const std::int64_t row = sequence.q_row + query;
  if (a.minus_lse_log2) {
    const float lse = arch::load(&a.tensors.lse.at(sequence.batch, head, row));
    arch::store(&a.minus_lse_log2.at(sequence.batch, head, row),
                resolved_lse(lse, -Log2Domain::from_natural));
  }
  float delta = fallback;
  if (a.problem.dropout.on()) {
    const OnlyKey only = only_key<dtype>(a, sequence, head, query);
    if (only.key >= 0) delta = only.dp;
  }
  delta = subtract_dlse(a, sequence.batch, head, row, delta);
  arch::store(&a.delta.at(sequence.batch, head, row), statistic(delta, 1));
}

// sum + Σ term(n) · row(n)[column] over [begin, end), computed by a wave. Each lane computes one
// term at a time and broadcasts it; each lane accumulates one column. Terms of 0 are skipped, so
// that non-finite elements of masked rows have no influence.
template <DType dtype, class Term, class Row>
float add_terms(float sum, std::int32_t begin, std::int32_t end, int column, int columns, Term term,
                Row row) {
  _Pragma("clang loop unroll(disable)") for (std::int32_t first = begin; first < end;
                                             first += arch::wave_size) {
    const std::int32_t own = first + arch::lane();
    const float mine = own < end ? term(own) : 0.0f;
    const std::int32_t count = end - first < arch::wave_size ? end - first : arch::wave_size;
    _Pragma("clang loop unroll(disable)") for (std::int32_t n = 0; n < count; ++n) {
      const float factor = arch::readlane(mine, n);
      if (factor != 0 && column < columns) sum += factor * read<dtype>(row(first + n), column);
    }
  }
  return sum;
}

// Stores one row of a gradient. All lanes call sum(column) together; each lane stores one column.
template <DType dtype, class Sum>
void store_exact(std::byte* row, int columns, Sum sum) {
  _Pragma("clang loop unroll(disable)") for (int first = 0; first < columns;
                                             first += arch::wave_size) {
    const int column = first + arch::lane();
    const float x = sum(column);
    if (column < columns) store_element(row, dtype, column, x);
  }
}

// dQ of one query, by one wave. `factor` is the softmax scale times the dropout scale.
template <DType dtype, bool specialized = false>
void exact_dq(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
              std::int32_t query, float factor) {
  const ExactGradient<dtype, specialized> exact{a, sequence, head};
  const QueryView view(a.problem.visibility, sequence, query);
  store_exact<dtype>(exact.query_row(a.tensors.dq, query), a.problem.head_dim, [&](int column) {
    return add_terms<dtype>(
        0, view.begin, view.end, column, a.problem.head_dim,
        [&](std::int32_t key) { return exact.at(query, key).gradient * factor; },
        [&](std::int32_t key) { return exact.key_row_of(a.problem.k, key); });
  });
}

// dK and dV of one key, or one of them, by one wave. One loop computes both, which keeps the code
// short.
template <DType dtype>
void exact_dk_dv(const BackwardArguments& a, const SequenceView& sequence, std::int64_t kv_head,
                 std::int32_t key, bool want_k, bool want_v) {
  const KeyView view(a.problem.visibility, sequence, key);
  const auto gqa_group = static_cast<std::int32_t>(a.problem.gqa_group());
  const std::int32_t first_head = static_cast<std::int32_t>(kv_head) * gqa_group;
  // Kept in VGPRs, since the SGPRs of GCN do not suffice.
  const std::int32_t end_head = arch::to_vgpr(first_head + gqa_group),
                     begin = arch::to_vgpr(view.begin), end = arch::to_vgpr(view.end);
  _Pragma("clang loop unroll(disable)") for (int result = 0; result < 2; ++result) {
    const bool dk = result == 0;
    const Rows &to = dk ? a.tensors.dk : a.tensors.dv, &from = dk ? a.problem.q : a.tensors.dout;
    if (!to || !(dk ? want_k : want_v)) continue;
    const float factor = a.problem.dropout.scale() * (dk ? a.problem.scale : 1.0f);
    std::byte* row =
        arch::to_vgpr(row_address<dtype>(to, sequence.batch, sequence.k_row + key, kv_head));
    store_exact<dtype>(row, to.columns, [&](int column) {
      float sum = 0;
      for (std::int32_t head = first_head; head < arch::uniform(end_head); ++head) {
        const ExactGradient<dtype> exact{a, sequence, head};
        sum = add_terms<dtype>(
            sum, arch::uniform(begin), arch::uniform(end), column, to.columns,
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
