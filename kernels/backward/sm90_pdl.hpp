// Programmatic dependent launch (PDL) of backward on Hopper: main and postprocess are launched
// while the preceding kernel still runs.
//
//   main          loads no results of preprocess, and adds nothing to dQ, before preprocess has
//                 completed. A workgroup whose additions to dQ are complete increments the counter
//                 of its (batch, KV head) slice.
//   postprocess   starts when the last workgroup of main has started, on SMs without one. A
//                 workgroup waits until all workgroups of its slice have signaled.
//
// No workgroup waits for one that has not started. Preprocess clears the counters. Each launch
// completes after the preceding one.
#pragma once

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/work_tile.hpp"

namespace rocflash::kernel {

// Before delta, the first result of preprocess, is loaded.
inline void wait_for_preprocess() {
  arch::grid_dependency_wait();
  arch::launch_dependents();
}

// Signals that the additions of a warp, or of all, to dQ are complete.
inline void signal_dq_done(const BackwardArguments& a, int reports = 1) {
  if (!a.bh_counters || arch::lane() != 0) return;
  const auto heads = static_cast<std::int32_t>(a.problem.kv_heads);
  const WorkTile item(a.work, heads, arch::opaque_sgpr(arch::workgroup_id()));
  arch::grid_dependency_wait();  // workgroups without queries have not
  arch::fence_proxy_async_global();
  arch::atomic_add(a.bh_counters + item.batch * heads + item.head, reports);
}

// Everything that a workgroup without keys does.
inline void exit_without_keys(const BackwardArguments& a, int reports) {
  if (arch::thread() >= arch::wave_size) return;
  wait_for_preprocess();
  signal_dq_done(a, reports);
}

}  // namespace rocflash::kernel
