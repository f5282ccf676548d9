// How workgroups share the blocks of rows of a problem.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Chips inside a device, each with a cache of its own, that take workgroups in turn.
int partitions(kernel::Family family, int units);

// Pairs of sequence and head whose blocks take turns, the longest of all of them first.
std::int32_t planes_together(const Problem& problem, kernel::Family family);

// Blocks of `tile_rows` of the `rows` of each sequence and head. Refuses more workgroups than a launch
// can have.
kernel::Work share_work(const Problem& problem, std::int64_t heads, std::int64_t rows,
                        int tile_rows, int threads, Chip chip);

}  // namespace rocflash::gpu
