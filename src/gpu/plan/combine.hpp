// How parts of the keys are merged.
#pragma once

#include "core/parts.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Waves of a workgroup that share a block of columns of a row: more where there are few of those and many parts. A
// power of two.
int combine_slices(std::int64_t parts, std::int64_t items, Chip chip);

// Adds the merging of parts to a plan, unless there is nothing to write. `problem` says which rows are in
// use and has the sinks, where the parts come from decode; null: all rows count.
void plan_combine(Plan& plan, const Parts& parts, const Problem* problem, Chip chip);

// The same for parts that decode leaves, into the outputs of a call.
void plan_merge(Plan& plan, Parts parts, const ForwardOutputs& outputs, const Problem& problem,
                Chip chip);

}  // namespace rocflash::gpu
