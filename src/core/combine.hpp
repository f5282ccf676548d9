// Merges attention over parts of the keys, one row at a time; backends spread the rows over
// threads.
#pragma once

#include <cstdint>

#include "core/calls.hpp"
#include "core/names.hpp"

namespace rocflash::core {

// Rows to merge: one for each sequence, query and head. Not more than out has elements.
inline std::int64_t combine_rows(const CombineCall& call) {
  return call.columns == 0 ? 0 : call.batch * call.queries * call.heads;
}
void combine_row(const CombineCall& call, std::int64_t row);

}  // namespace rocflash::core
