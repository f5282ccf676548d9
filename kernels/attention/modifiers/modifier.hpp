// What all score modifiers share. A modifier is a class template over the pass:
//
//   template <class Pass>
//   struct Name {
//     static constexpr Feature feature = ...;              // its bit (table/feature.hpp)
//     Name(const Problem& p, const ScoreSlice& slice);     // may load numbers of the slice once
//     template <class Unit, int count, class Query, class Key, class Score, class Slope>
//     void apply(const Problem& p, const ScoreSlice& slice, Query query, Key key, Score score,
//                Slope slope) const;
//   };
//
// apply() changes `count` scores in the natural log domain: score(n) is a reference to score n,
// query(n) and key(n) are its indices in the sequence. slope(n, x) multiplies the derivative of
// score n by x, the derivative of the new score with respect to the old one. A modifier that only
// adds to scores, or masks them, does not call it. Tiles contain queries and keys past the end of
// the sequence, whose scores have no influence.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "table/feature.hpp"

namespace rocflash::kernel {

// Forward and decode.
struct ForwardPass {
  // An f32 number of a modifier.
  static float number(float x) { return x; }
  template <class T>
  static const T& arguments(const T& x) {
    return x;
  }
};

// Gradients. A NaN becomes the default NaN: rounded to bf16, another payload could become a finite
// value. Kernel arguments are reloaded at each use, since they exceed the SGPR budget.
struct BackwardPass {
  static float number(float x) { return statistic(x, 1); }
  template <class T>
  static const T& arguments(const T& x) {
    return arch::reload_kernargs(x);
  }
};

// No derivatives are needed.
struct NoSlopes {
  void operator()(int, float) const {}
};

// The queries of the scores of a call: one for all, or one per score.
struct OneQuery {
  static constexpr bool is_same_for_all = true;
  std::int32_t index;
  std::int32_t operator()(int) const { return index; }
};
template <class Index>
struct QueryPerScore {
  static constexpr bool is_same_for_all = false;
  Index index;
  std::int32_t operator()(int n) const { return index(n); }
};
template <class Index>
QueryPerScore(Index) -> QueryPerScore<Index>;

// One (batch, head) slice of scores.
struct ScoreSlice {
  const SequenceView& sequence;
  std::int64_t head;

  // Queries and keys past the end have no element: they read the last one, whose value is
  // discarded.
  std::int64_t column_of(std::int32_t key) const {
    return key < sequence.sk ? key : sequence.sk - 1;
  }
  const std::byte* row_of(const PerScore& numbers, std::int32_t query) const {
    return numbers.row(sequence.batch, head, query < sequence.sq ? query : sequence.sq - 1);
  }
  // The row of score n, computed once if all scores are of one query.
  template <class Query>
  auto rows_of(const PerScore& numbers, Query query) const {
    if constexpr (Query::is_same_for_all) {
      return [row = row_of(numbers, query(0))](int) { return row; };
    } else {
      return [this, &numbers, query](int n) { return row_of(numbers, query(n)); };
    }
  }
};

}  // namespace rocflash::kernel
