// Decode over few keys on Hopper: one launch, whose workgroups merge their results by clusters.
#pragma once

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// The workgroups of a cluster, which share the keys of a block of rows; 0 where clusters do not serve the problem, or
// not as well as decode's other kernels. `num_splits` is honoured or leads to 0. Never looks at lengths on the device.
std::int32_t cluster_size(const Problem& problem, Chip chip);

// Adds decode to a plan: one launch by clusters of this size.
void plan_clusters(Plan& plan, const Problem& problem, const ForwardOutputs& outputs,
                   std::int32_t size);

}  // namespace rocflash::gpu
