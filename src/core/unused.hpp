// Output rows that belong to no query or key in use. They are written too, so that callers never
// read uninitialized memory: out, gradients and weights become 0, lse becomes +inf.
#pragma once

#include "core/names.hpp"
#include "core/problem.hpp"

namespace rocflash::core {

void clear_unused(const Problem& problem, const ForwardOutputs& outputs);
void clear_unused(const Problem& problem, const BackwardTensors& tensors,
                  const RowStatistic& delta);

}  // namespace rocflash::core
