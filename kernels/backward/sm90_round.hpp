// Rounds dq on Hopper as sm80_rows.hpp does, in a launch that starts while gradients are still computed: it rounds the
// planes that are done (planes.hpp).
#pragma once

#include "backward/planes.hpp"
#include "backward/sm80_rows.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void backward_round_early(const BackwardArguments& a) {
  constexpr int owned = backward_tile(this_family, spec).owned;
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t block = item.block * owned, begin = block + arch::wave() * DqSums::rows;
  if (block < sequence.sq) {
    if (arch::thread() == 0) {
      const std::uint32_t* const plane = a.planes + item.batch * p.kv_heads + p.kv_head(item.head);
      while (arch::load_counter(plane) < static_cast<std::uint32_t>(a.reports)) arch::pause();
    }
    arch::barrier();
    if (begin < sequence.sq) round_rows<spec>(a, sequence, item, begin);
  }
  // One is enough for the launch to end behind the one before it; the others make room.
  if (arch::group() == 0) arch::wait_for_launch_before();
}

}  // namespace rocflash::kernel
