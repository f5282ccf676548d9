// Launch plan of the append kernel, which runs before attention: it writes new keys and values to
// the KV cache and applies rotary embedding.
#pragma once

#include "core/new_keys.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds the append kernel to a plan, unless there is nothing to append or rotate. Returns the
// problem that attention then solves: the kernel writes its lengths and rotated queries to the
// workspace. `workspace` may be null in a size query.
Problem plan_append(Plan& plan, const Problem& problem, const Append& append, std::byte* workspace,
                    Chip chip);

// Adds a launch of the same kernel that writes the rotated queries to `out`.
void plan_rotate(Plan& plan, const Problem& problem, const Rotary& rotary, const Rows& out,
                 Chip chip);

}  // namespace rocflash::gpu
