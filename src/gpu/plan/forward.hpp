// Launch plan of forward, for training and prefill.
#pragma once

#include "core/problem.hpp"
#include "gpu/dispatch/select.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds forward to a plan, unless the output is empty.
void plan_forward(Plan& plan, const ForwardSelection& selection, const Problem& problem,
                  const ForwardOutputs& outputs, Chip chip);

}  // namespace rocflash::gpu
