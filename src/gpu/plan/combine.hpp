// Launch plan of the combine kernel, which reduces the partial results of split-KV.
#pragma once

#include "core/partials.hpp"
#include "gpu/dispatch/features.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds the combine kernel to a plan, unless the output is empty. All rows are in use.
void plan_combine(Plan& plan, const Partials& partials, Chip chip);

// The same for the partial results of decode, into the outputs of a call. `problem`, with its
// features, has the sequence lengths and the sinks.
void plan_split_combine(Plan& plan, Partials partials, const ForwardOutputs& outputs,
                        const Problem& problem, Features features, Chip chip);

}  // namespace rocflash::gpu
