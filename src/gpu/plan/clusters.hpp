// Decode without options on Hopper: over few keys one launch, whose workgroups merge their results by clusters; over many
// keys workgroups that write parts.
#pragma once

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Whether the kernels of both serve the problem.
bool suits_clusters(const Problem& problem, Chip chip);

// The workgroups of a cluster, which share the keys of a block of rows; 0 where clusters do not serve the problem, or
// not as well as decode's other kernels. `num_splits` is honoured or leads to 0. Never looks at lengths on the device.
std::int32_t cluster_size(const Problem& problem, Chip chip);

// Adds decode to a plan: one launch by clusters of this size.
void plan_clusters(Plan& plan, const Problem& problem, const ForwardOutputs& outputs,
                   std::int32_t size);

// Many keys: workgroups for a block of rows, as many as fill the device at once, or `usual`.
std::int32_t long_splits(const Problem& problem, std::int32_t usual, Chip chip);
// Adds decode to a plan, and the merging of its parts if there are several.
void plan_long(Plan& plan, const Problem& problem, const ForwardOutputs& outputs,
               std::byte* workspace, std::int32_t splits, Chip chip);

}  // namespace rocflash::gpu
