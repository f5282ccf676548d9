// Launch plan of the memory-read kernel, which measures bandwidth.
#pragma once

#include "gpu/backend.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

inline void plan_read(Plan& plan, const MemoryRead& read, Chip chip) {
  auto& a = plan.next<kernel::Op::read_memory>();
  a.data = read.data;
  a.chunks = read.bytes / 16;
  a.found = read.found;
  a.wanted = 0x9e3779b9;  // arbitrary: it keeps the compiler from removing the loads
  a.workgroups = read.groups;
  if (a.chunks > 0) plan.add(kernel::read_spec(), chip.family, a.workgroups);
}

}  // namespace rocflash::gpu
