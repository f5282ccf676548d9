// The reference implementation, written for readability: all other backends are verified against
// it.
//
// `reference_backend` computes in double and stores to any output dtype, f64 included.
// `naive_backend` is naive attention op by op: every tensor that a framework would materialize is
// rounded to the dtype of q, and sums accumulate in float. Its error is the baseline of the error
// bound: other backends may have at most twice that error, three times for gradients.
#pragma once

#include "core/backend.hpp"

namespace rocflash {

const Backend& reference_backend();
const Backend& naive_backend();

}  // namespace rocflash
