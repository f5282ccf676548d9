// What every operation's plan asks about the sequences of a problem.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/problem.hpp"

namespace rocflash::gpu {

// A packed tensor whose rows belong to no sequence.
inline bool is_without_sequences(const Problem& p) {
  return p.lengths.packed_q() && p.batch() == 0;
}

// The longest sequence of queries: not more than the tensor has, whatever max_seqlen_q says;
// without sequences the rows are taken for one.
inline std::int64_t sequence_rows(const Lengths& l, std::int64_t max_q) {
  return l.packed_q() && l.batch == 0 ? l.rows_q : std::min(max_q, l.rows_q);
}

// What a block table may name; kernels count it in 32 bits.
inline std::int32_t caches_of(const Problem& p) {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(p.caches, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace rocflash::gpu
