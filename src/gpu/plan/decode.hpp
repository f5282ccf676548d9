// How attention of few queries is run: the keys of a sequence divided over workgroups, and the parts merged.
#pragma once

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Whether the keys are divided: few queries, and keys enough to divide. Never looks at lengths on the device.
enum class Gradients { may_follow, never };  // of this call
bool is_split(const Problem& problem, const ForwardOutputs& outputs, Chip chip,
              Gradients gradients = Gradients::may_follow);

// Workgroups that share the keys of a block of rows: `num_splits`, or as many as keep the device busy.
std::int32_t decode_splits(const Problem& problem, Chip chip);

// Adds decode and the merging of its parts to a plan. `workspace` is the call's scratch memory; null where only the
// plan's size is asked for.
void plan_decode(Plan& plan, const Problem& problem, const ForwardOutputs& outputs,
                 std::byte* workspace, Chip chip);

}  // namespace rocflash::gpu
