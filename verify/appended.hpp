// What a cache and the queries are once new keys have been appended and rotated, worked out from
// the definition and apart from the library, which is on trial.
#pragma once

#include <string>

#include "verify/compare.hpp"
#include "verify/tensors.hpp"

namespace rocflash::verify {

enum class Arithmetic : std::uint8_t {
  exact,    // rotated in double and rounded once
  by_steps  // every product and sum rounded to the problem's dtype, as plain attention would
};

// An ordinary forward over the cache as it is afterwards.
Inputs after_append(const Inputs& before, Arithmetic arithmetic);

// Empty, or what a decode did to the cache that it should not have: values appended are copied bit
// by bit, and all else stays as it was.
std::string damage(const Inputs& before, const Inputs& found);

// The keys that were appended, judged like an output.
Finding judge_appended_keys(const Inputs& exact, const Inputs& plain, const Inputs& found);

}  // namespace rocflash::verify
