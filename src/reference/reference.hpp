// The definition of attention, written to be read: every other backend is judged by it.
//
// `reference_backend` computes in double and stores into whatever dtype the outputs have, f64
// included. `plain_backend` takes the same steps as a framework would, op by op: every tensor such
// a program would materialise is rounded to the dtype of q, and sums run in float. Its error is the
// yardstick: others may err at most twice as much (three times for gradients).
#pragma once

#include "core/backend.hpp"

namespace rocflash {

const Backend& reference_backend();
const Backend& plain_backend();

}  // namespace rocflash
