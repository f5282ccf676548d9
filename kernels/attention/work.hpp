// Which queries a workgroup computes.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"

namespace rocflash::kernel {

struct WorkItem {
  std::int32_t batch, head, block;

  WorkItem(const Work& work, std::int32_t heads, std::int32_t group) {
    using arch::Ordinal;
    const auto partitions = static_cast<Ordinal>(work.partitions),
               groups = static_cast<Ordinal>(work.groups),
               blocks = static_cast<Ordinal>(work.blocks),
               planes_together = static_cast<Ordinal>(work.planes_together),
               number = static_cast<Ordinal>(group), all_heads = static_cast<Ordinal>(heads);
    // The hardware hands workgroups to partitions in turn; give each partition a contiguous share.
    const Ordinal partition = number % partitions, turn = number / partitions;
    const Ordinal share = groups / partitions, rest = groups % partitions;
    const Ordinal item = partition * share + (partition < rest ? partition : rest) + turn;
    // Blocks of `planes_together` planes alternate.
    const Ordinal first = item / (blocks * planes_together) * planes_together;
    const Ordinal left = groups / blocks - first;
    const Ordinal together = left < planes_together ? left : planes_together;
    const Ordinal among_them = item - first * blocks;
    const Ordinal plane = first + among_them % together;
    batch = static_cast<std::int32_t>(plane / all_heads);
    head = static_cast<std::int32_t>(plane % all_heads);
    // Under a causal mask the last queries see most keys. They go first, so that short blocks fill the
    // end of the launch.
    block = static_cast<std::int32_t>(blocks - 1 - among_them / together);
  }
};

}  // namespace rocflash::kernel
