// Decode by Hopper's warpgroups of rows that are keys and values (kernels/decode/sm90_latent.hpp): which problems it
// serves, and how keys are divided.
#pragma once

#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Rows of q that a workgroup takes; 0 where the kernel does not serve the problem. The caller knows that values are the
// first columns of the keys, and that rows are as plain kernels take them.
int latent_group_rows(const Problem& problem, Chip chip);

// Workgroups that share the keys of a sequence, where there are so many blocks of rows.
std::int32_t latent_splits(std::int64_t keys, std::int64_t blocks, Chip chip);

// Whether two workgroups, with neighbouring parts of the same rows, merge their results and leave one part.
bool latent_pairs(std::int32_t splits);

// The map of the keys, for the next launch.
void map_latent(Plan& plan, kernel::LatentWarpgroupsArguments& arguments);

}  // namespace rocflash::gpu
