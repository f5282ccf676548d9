// Scores one by one, without matrix instructions: slow and simple. For s_dmask, and for outputs
// that are not finite.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

template <DType dtype>
float read(const std::byte* row, int column) {
  return widen<dtype>(arch::load(reinterpret_cast<const std::uint16_t*>(row) + column));
}

// One (sequence, head) of a problem.
template <DType dtype>
struct ExactScores {
  const Problem& problem;
  const SequenceView& sequence;
  std::int64_t head;
  std::int32_t caches;
  ScoreShape shape{problem, sequence, head};

  const std::byte* query_row(std::int32_t query) const {
    const Rows& q = arch::again(problem).q;
    return row_address<dtype>(q, sequence.batch, sequence.q_row + query, head);
  }
  const std::byte* row_of(const Rows& rows, std::int32_t key) const {
    return key_row<dtype>(arch::again(rows), caches, sequence.batch, sequence.k_row + key,
                          problem.kv_head(head));
  }

  // As an exponent of two. The query must see the key by position.
  float score(const QueryView& query, std::int32_t key) const {
    const std::byte *q = query_row(query.index), *k = row_of(problem.k, key);
    float s = 0;
    for (int column = 0; column < problem.head_dim; ++column)
      s += read<dtype>(q, column) * read<dtype>(k, column);
    if (problem.scale < 0) s = -s;
    shape.template shape<1>(query, [&](int) -> float& { return s; }, [&](int) { return key; });
    return s;
  }
};

// To a matrix instruction a weight of 0 times infinity or NaN is NaN, but a value without weight must
// have no influence. A wave that finds outputs of a query that are not finite sums that query again
// here, without the values whose weight is 0; each lane sums one column at a time. It is rare, so it
// may be slow; what matters is that it needs few registers.
template <DType dtype>
void repair(const ExactScores<dtype>& scores, const QueryView& query, float base, float factor,
            const Rows& out) {
  const Problem& p = scores.problem;
  const SequenceView& s = scores.sequence;
  std::byte* to = row_address<dtype>(out, s.batch, s.q_row + query.index, scores.head);
  for (int column = arch::lane(); column < p.value_dim; column += arch::wave_size) {
    float sum = 0;
    for (std::int32_t key = query.begin; key < query.end; ++key) {
      const float weight = arch::exp2(scores.score(query, key) - base);
      if (weight == 0 || (p.dropout.on() && !scores.shape.keeps(query, key))) continue;
      sum += weight * read<dtype>(scores.row_of(p.v, key), column);
    }
    arch::store(reinterpret_cast<std::uint16_t*>(to) + column, narrow<dtype>(sum * factor));
  }
}

}  // namespace rocflash::kernel
