// Launch plan of the weights kernel, which writes s_dmask after forward.
#pragma once

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds the weights kernel to a plan, unless s_dmask is not requested or empty.
void plan_weights(Plan& plan, const Problem& problem, const ForwardOutputs& outputs, Chip chip);

}  // namespace rocflash::gpu
