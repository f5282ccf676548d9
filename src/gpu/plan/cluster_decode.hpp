// Launch plans of the sm_90a decode kernels, which have no score modifiers. Short KV: one launch
// whose clusters combine their results through DSMEM. Long KV: split-KV and the combine kernel.
#pragma once

#include "core/problem.hpp"
#include "gpu/dispatch/select.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Adds one launch of clusters to a plan.
void plan_cluster_decode(Plan& plan, const DecodeSelection& selection, const Problem& problem,
                         const ForwardOutputs& outputs);

// Adds split-KV decode to a plan, and the combine kernel if there is more than one split.
void plan_sm90_splitkv(Plan& plan, const DecodeSelection& selection, const Problem& problem,
                       const ForwardOutputs& outputs, std::byte* workspace, Chip chip);

}  // namespace rocflash::gpu
