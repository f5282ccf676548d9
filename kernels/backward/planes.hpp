// How launches of backward overlap on Hopper. The kernel that computes gradients, and the one that rounds dq behind it,
// are launched while the one before still runs.
//
//   gradients   load nothing that the launch before has written, and add nothing to dq, before that one has ended. Once
//               the additions of a workgroup are done, it reports so at the counter of its plane of keys.
//   round       starts when the last workgroup of gradients has started, on multiprocessors that have none left. A workgroup
//               waits until all of its plane have reported.
//
// So nobody waits for a workgroup that has not started. The kernel that computes delta clears the counters. Each launch
// ends behind the one before it.
#pragma once

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/work.hpp"

namespace rocflash::kernel {

// Before delta is loaded, which all else waits for.
inline void begin_behind_delta() {
  arch::wait_for_launch_before();
  arch::let_next_launch_start();
}

// Reports for a warp, or for all, whose additions to dq are done.
inline void report_additions(const BackwardArguments& a, int reports = 1) {
  if (!a.planes || arch::lane() != 0) return;
  const auto heads = static_cast<std::int32_t>(a.problem.kv_heads);
  const WorkItem item(a.work, heads, arch::renewed(arch::group()));
  arch::wait_for_launch_before();  // workgroups without queries have not
  arch::order_copies();
  arch::count(a.planes + item.batch * heads + item.head, reports);
}

// What a workgroup without keys does instead of all else.
inline void leave_plane(const BackwardArguments& a, int reports) {
  if (arch::thread() >= arch::wave_size) return;
  begin_behind_delta();
  report_additions(a, reports);
}

}  // namespace rocflash::kernel
