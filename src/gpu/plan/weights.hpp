// How s_dmask is written: by a kernel of its own, behind forward.
#pragma once

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds the weights to a plan, unless there are none to write.
void plan_weights(Plan& plan, const Problem& problem, const ForwardOutputs& outputs, Chip chip);

}  // namespace rocflash::gpu
