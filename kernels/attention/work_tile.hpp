// XCD-aware mapping of a workgroup index to a work tile, in LPT order.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"

namespace rocflash::kernel {

struct WorkTile {
  std::int32_t batch, head, block;

  WorkTile(const TileSchedulerParams& work, std::int32_t heads, std::int32_t workgroup) {
    using arch::WorkgroupIndex;
    const auto xcds = static_cast<WorkgroupIndex>(work.xcds),
               workgroups = static_cast<WorkgroupIndex>(work.workgroups),
               blocks = static_cast<WorkgroupIndex>(work.blocks),
               bh_interleave = static_cast<WorkgroupIndex>(work.bh_interleave),
               number = static_cast<WorkgroupIndex>(workgroup),
               all_heads = static_cast<WorkgroupIndex>(heads);
    // Workgroups are dispatched to XCDs round-robin. Each XCD gets a contiguous range of work
    // tiles, so that a head's K and V stay in one L2.
    const WorkgroupIndex xcd = number % xcds, index_in_xcd = number / xcds;
    const WorkgroupIndex share = workgroups / xcds, rest = workgroups % xcds;
    const WorkgroupIndex index = xcd * share + (xcd < rest ? xcd : rest) + index_in_xcd;
    // Work tiles of `bh_interleave` slices alternate.
    const WorkgroupIndex first = index / (blocks * bh_interleave) * bh_interleave;
    const WorkgroupIndex left = workgroups / blocks - first;
    const WorkgroupIndex together = left < bh_interleave ? left : bh_interleave;
    const WorkgroupIndex index_in_slices = index - first * blocks;
    const WorkgroupIndex bh = first + index_in_slices % together;
    batch = static_cast<std::int32_t>(bh / all_heads);
    head = static_cast<std::int32_t>(bh % all_heads);
    // LPT order: under a causal mask the last queries attend to the most keys. They are scheduled
    // first, and short work tiles fill the tail.
    block = static_cast<std::int32_t>(blocks - 1 - index_in_slices / together);
  }
};

}  // namespace rocflash::kernel
