// Which workgroup does which queries.
#pragma once

#include <cstdint>

#include "attention/arguments.hpp"

namespace rocflash::kernel {

struct WorkItem {
  std::int32_t batch, head, block;

  WorkItem(const Work& work, std::int32_t heads, std::int32_t group) {
    // Partitions take workgroups in turn; give each of them a contiguous share.
    const std::int32_t partition = group % work.partitions, turn = group / work.partitions;
    const std::int32_t share = work.groups / work.partitions, rest = work.groups % work.partitions;
    const std::int32_t item = partition * share + (partition < rest ? partition : rest) + turn;
    const std::int32_t plane = item / work.query_blocks;
    batch = plane / heads;
    head = plane % heads;
    // Under a causal mask the last queries see most keys: they go first, so that the short ones
    // fill the end.
    block = work.query_blocks - 1 - item % work.query_blocks;
  }
};

}  // namespace rocflash::kernel
