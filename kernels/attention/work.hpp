// Which queries a workgroup computes.
#pragma once

#include <cstdint>

#include "attention/arguments.hpp"

namespace rocflash::kernel {

struct WorkItem {
  std::int32_t batch, head, block;

  // Unsigned throughout: its divisions take fewer instructions.
  WorkItem(const Work& work, std::int32_t heads, std::int32_t group) {
    const auto partitions = static_cast<std::uint32_t>(work.partitions),
               groups = static_cast<std::uint32_t>(work.groups),
               blocks = static_cast<std::uint32_t>(work.blocks),
               planes_together = static_cast<std::uint32_t>(work.planes_together),
               number = static_cast<std::uint32_t>(group),
               all_heads = static_cast<std::uint32_t>(heads);
    // The hardware hands workgroups to partitions in turn; give each partition a contiguous share.
    const std::uint32_t partition = number % partitions, turn = number / partitions;
    const std::uint32_t share = groups / partitions, rest = groups % partitions;
    const std::uint32_t item = partition * share + (partition < rest ? partition : rest) + turn;
    // Blocks of `planes_together` planes alternate.
    const std::uint32_t first = item / (blocks * planes_together) * planes_together;
    const std::uint32_t left = groups / blocks - first;
    const std::uint32_t together = left < planes_together ? left : planes_together;
    const std::uint32_t among_them = item - first * blocks;
    const std::uint32_t plane = first + among_them % together;
    batch = static_cast<std::int32_t>(plane / all_heads);
    head = static_cast<std::int32_t>(plane % all_heads);
    // Under a causal mask the last queries see most keys. They go first, so that short blocks fill the
    // end of the launch.
    block = static_cast<std::int32_t>(blocks - 1 - among_them / together);
  }
};

}  // namespace rocflash::kernel
