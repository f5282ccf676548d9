// Rows of the outputs that belong to no query or key in use. They are written too, so that a caller
// never reads what happened to be in memory: out, gradients and weights become 0, lse becomes +inf.
#pragma once

#include "core/names.hpp"
#include "core/problem.hpp"

namespace rocflash::core {

void clear_unused(const Problem& problem, const ForwardOutputs& outputs);
void clear_unused(const Problem& problem, const BackwardTensors& tensors);

}  // namespace rocflash::core
