// Launch plans of whole calls. The workspace query and the run of a call use the same function.
#pragma once

#include "core/calls.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds a call to a plan. `workspace` may be null in a size query.
void plan_call(Plan& plan, const ForwardCall& call, std::byte* workspace, Chip chip);
void plan_call(Plan& plan, const DecodeCall& call, std::byte* workspace, Chip chip);
void plan_call(Plan& plan, const BackwardCall& call, std::byte* workspace, Chip chip);

}  // namespace rocflash::gpu
