// Launch plan of decode: workgroups divide the keys of a sequence, and the combine kernel reduces
// their partial results.
#pragma once

#include "core/problem.hpp"
#include "gpu/dispatch/select.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds the selected decode kernel, and the combine kernel if needed, to a plan. `workspace` may be
// null in a size query.
void plan_decode(Plan& plan, const DecodeSelection& selection, const Problem& problem,
                 const ForwardOutputs& outputs, std::byte* workspace, Chip chip);

}  // namespace rocflash::gpu
