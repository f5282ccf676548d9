// Launch plan of backward: order of launches, arguments and workspace.
#pragma once

#include <cstddef>

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds backward to a plan. `workspace` may be null in a size query. A null `delta` is allocated in
// the workspace. `dlse`: gradient of lse, may be null.
void plan_backward(Plan& plan, const Problem& problem, const BackwardTensors& tensors,
                   std::byte* workspace, Chip chip, const RowStatistic& delta = {},
                   const RowStatistic& dlse = {});

}  // namespace rocflash::gpu
