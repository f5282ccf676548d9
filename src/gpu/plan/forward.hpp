// Launch plan of forward, for training and prefill.
#pragma once

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// A problem and its outputs as forward kernels get them: single rows have a stride, and packed rows
// without sequences are one sequence without keys.
void prepare_forward(Problem& problem, ForwardOutputs& outputs);

// Adds forward to a plan, unless the output is empty. Rejects a problem that needs more workgroups
// than a launch can have.
void plan_forward(Plan& plan, const Problem& problem, const ForwardOutputs& outputs, Chip chip);

}  // namespace rocflash::gpu
