// Which queries a workgroup computes.
#pragma once

#include <cstdint>

#include "attention/arguments.hpp"

namespace rocflash::kernel {

struct WorkItem {
  std::int32_t batch, head, block;

  WorkItem(const Work& work, std::int32_t heads, std::int32_t group) {
    // The hardware hands workgroups to partitions in turn; give each partition a contiguous share.
    const std::int32_t partition = group % work.partitions, turn = group / work.partitions;
    const std::int32_t share = work.groups / work.partitions, rest = work.groups % work.partitions;
    const std::int32_t item = partition * share + (partition < rest ? partition : rest) + turn;
    // Blocks of `planes_together` planes alternate.
    const std::int32_t first = item / (work.blocks * work.planes_together) * work.planes_together;
    const std::int32_t left = work.groups / work.blocks - first;
    const std::int32_t together = left < work.planes_together ? left : work.planes_together;
    const std::int32_t among_them = item - first * work.blocks;
    const std::int32_t plane = first + among_them % together;
    batch = plane / heads;
    head = plane % heads;
    // Under a causal mask the last queries see most keys. They go first, so that short blocks fill the
    // end of the launch.
    block = work.blocks - 1 - among_them / together;
  }
};

}  // namespace rocflash::kernel
