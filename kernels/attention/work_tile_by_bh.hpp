// WorkTile with a fast path for bh_interleave 1: half of the integer divisions, which dominate the
// latency of the scalar prologue before the first load.
#pragma once

#include "attention/work_tile.hpp"

namespace rocflash::kernel {

inline WorkTile work_tile_by_bh(const TileSchedulerParams& work, std::int32_t heads,
                                std::int32_t workgroup) {
  if (work.bh_interleave != 1) return WorkTile(work, heads, workgroup);
  using arch::WorkgroupIndex;
  const auto xcds = static_cast<WorkgroupIndex>(work.xcds),
             workgroups = static_cast<WorkgroupIndex>(work.workgroups),
             blocks = static_cast<WorkgroupIndex>(work.blocks),
             number = static_cast<WorkgroupIndex>(workgroup),
             all_heads = static_cast<WorkgroupIndex>(heads);
  const WorkgroupIndex index_in_xcd = number / xcds, xcd = number - index_in_xcd * xcds;
  const WorkgroupIndex share = workgroups / xcds, rest = workgroups - share * xcds;
  const WorkgroupIndex index = xcd * share + (xcd < rest ? xcd : rest) + index_in_xcd;
  const WorkgroupIndex bh = index / blocks;
  WorkTile result(TileSchedulerParams{1, 1, 1, 1}, 1, 0);  // overwritten below
  result.batch = static_cast<std::int32_t>(bh / all_heads);
  result.head = static_cast<std::int32_t>(bh % all_heads);
  result.block = static_cast<std::int32_t>(blocks - 1 - (index - bh * blocks));
  return result;
}

}  // namespace rocflash::kernel
