// Which queries a workgroup computes where the blocks of one plane follow each other (planes_together is
// 1, as on AMD GPUs): the same WorkItem with half of the divisions, which are what a scalar unit is
// slowest at before it can ask for anything.
#pragma once

#include "attention/work.hpp"

namespace rocflash::kernel {

inline WorkItem work_by_plane(const Work& work, std::int32_t heads, std::int32_t group) {
  using arch::Ordinal;
  const auto partitions = static_cast<Ordinal>(work.partitions),
             groups = static_cast<Ordinal>(work.groups), blocks = static_cast<Ordinal>(work.blocks),
             number = static_cast<Ordinal>(group), all_heads = static_cast<Ordinal>(heads);
  const Ordinal turn = number / partitions, partition = number - turn * partitions;
  const Ordinal share = groups / partitions, rest = groups - share * partitions;
  const Ordinal item = partition * share + (partition < rest ? partition : rest) + turn;
  const Ordinal plane = item / blocks;
  WorkItem result(Work{1, 1, 1, 1}, 1, 0);  // numbers of its own follow
  result.batch = static_cast<std::int32_t>(plane / all_heads);
  result.head = static_cast<std::int32_t>(plane % all_heads);
  result.block = static_cast<std::int32_t>(blocks - 1 - (item - plane * blocks));
  return result;
}

}  // namespace rocflash::kernel
