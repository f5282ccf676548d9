// How new keys are appended to a cache and queries are rotated: by a kernel of its own, before
// attention.
#pragma once

#include "core/new_keys.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds the append to a plan, unless there is nothing to do, and returns the problem as it then stands: its
// lengths and queries lie in the workspace, where the kernel writes them. `workspace` is the call's
// scratch memory; null where only the plan's size is asked for.
Problem plan_append(Plan& plan, const Problem& problem, const Append& append, std::byte* workspace,
                    Chip chip);

// Adds a launch that writes the problem's queries to `out`, rotated; it is the same kernel.
void plan_rotate(Plan& plan, const Problem& problem, const Rotary& rotary, const Rows& out,
                 Chip chip);

}  // namespace rocflash::gpu
