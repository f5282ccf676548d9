// New keys and values on their way into a cache, rotary embedding on the way: what decode does
// before attention.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/names.hpp"
#include "core/new_keys.hpp"
#include "core/problem.hpp"
#include "core/sizes.hpp"

namespace rocflash::core {

// The problem as it stands when the new keys are in the cache, for backends that append on the
// host. Its own arrays, the lengths and the rotated queries, lie at the start of their workspace.
struct AppendedProblem {
  // `memory` has `bytes(before, append)`.
  AppendedProblem(const Problem& before, const Append& append, std::byte* memory);
  static Size bytes(const Problem& problem, const Append& append);

  Problem problem;
};

// Keys that a sequence has before anything is appended.
inline std::int64_t keys_before(const Problem& p, std::int64_t b) {
  return p.lengths.used_k ? p.lengths.used_k[b] : p.lengths.keys(b);
}

// Rows of all queries, and one of them rotated: all of its heads, written to `to`.
std::int64_t query_rows(const Problem& problem);
void rotate_query(const Problem& problem, const Rotary& rotary, const Rows& to, std::int64_t row);

// The work in independent rows: each is one row of all heads, of the new keys or of the queries to
// rotate.
std::int64_t append_rows(const Problem& problem, const Append& append);
void append_row(const Problem& problem, const Append& append, const AppendedProblem& after,
                std::int64_t row);

}  // namespace rocflash::core
