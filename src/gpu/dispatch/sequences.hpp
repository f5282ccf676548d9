// Sequence lengths of a problem, for all launch plans.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/problem.hpp"

namespace rocflash::gpu {

// A packed tensor of batch 0: its rows belong to no sequence.
inline bool has_no_sequences(const Problem& p) { return p.lengths.packed_q() && p.batch() == 0; }

// Upper bound on the query length: max_seqlen_q, but at most the rows of the tensor. Without
// sequences all rows count as one sequence.
inline std::int64_t sequence_rows(const Lengths& l, std::int64_t max_q) {
  return l.packed_q() && l.batch == 0 ? l.rows_q : std::min(max_q, l.rows_q);
}

// The number of KV cache pages that a block table may index; kernels use 32 bits.
inline std::int32_t caches_of(const Problem& p) {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(p.caches, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace rocflash::gpu
