// Combines split-KV partial results, one row at a time; backends distribute the rows over threads.
#pragma once

#include <cstdint>

#include "core/calls.hpp"
#include "core/names.hpp"

namespace rocflash::core {

// Number of rows: one per (batch, query, head). At most the number of elements of out.
inline std::int64_t combine_rows(const CombineCall& call) {
  return call.columns == 0 ? 0 : call.batch * call.queries * call.heads;
}
void combine_row(const CombineCall& call, std::int64_t row);

}  // namespace rocflash::core
