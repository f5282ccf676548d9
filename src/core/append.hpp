// Appending new keys and values to the KV cache, with rotary embedding: the first stage of decode.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/names.hpp"
#include "core/new_keys.hpp"
#include "core/problem.hpp"
#include "core/sizes.hpp"

namespace rocflash::core {

// The problem after the append, for backends that append on the host. Its own arrays (lengths and
// rotated queries) are at the start of the workspace.
struct AppendedProblem {
  // `memory` has `bytes(before, append)`.
  AppendedProblem(const Problem& before, const Append& append, std::byte* memory);
  static Size bytes(const Problem& problem, const Append& append);

  Problem problem;
};

// Number of keys of a sequence before the append.
inline std::int64_t keys_before(const Problem& p, std::int64_t b) {
  return p.lengths.used_k ? p.lengths.used_k[b] : p.lengths.keys(b);
}

// Number of query rows, and the rotation of one of them (all heads) into `to`.
std::int64_t query_rows(const Problem& problem);
void rotate_query(const Problem& problem, const Rotary& rotary, const Rows& to, std::int64_t row);

// Independent work items: one row of all heads, of the new keys or of the queries to rotate.
std::int64_t append_rows(const Problem& problem, const Append& append);
void append_row(const Problem& problem, const Append& append, const AppendedProblem& after,
                std::int64_t row);

}  // namespace rocflash::core
