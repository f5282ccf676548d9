// The expected KV cache and queries after append and rotary embedding, computed from the definition
// and independently of the library under test.
#pragma once

#include <string>

#include "verify/compare.hpp"
#include "verify/tensors.hpp"

namespace rocflash::verify {

enum class Arithmetic : std::uint8_t {
  exact,              // rotated in double and rounded once
  every_step_rounded  // every product and sum rounded to the problem's dtype, as in naive attention
};

// The inputs of a forward without append over the resulting cache.
Inputs after_append(const Inputs& before, Arithmetic arithmetic);

// Empty, or an error if appended values are not bitwise copies or other rows of the cache changed.
std::string cache_mismatch(const Inputs& before, const Inputs& found);

// Compares the appended keys like an output.
Comparison compare_appended_keys(const Inputs& exact, const Inputs& naive, const Inputs& found);

}  // namespace rocflash::verify
