// Postprocess on Hopper as in sm80_pre_postprocess.hpp, launched with PDL while main still runs: it
// converts the (batch, head) slices that are complete (sm90_pdl.hpp).
#pragma once

#include "backward/sm80_pre_postprocess.hpp"
#include "backward/sm90_pdl.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void backward_postprocess_pdl(const BackwardArguments& a) {
  constexpr int owned = backward_tile(this_family, spec).owned;
  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t block = item.block * owned, begin = block + arch::wave() * DqAccumulator::rows;
  if (block < sequence.sq) {
    if (arch::thread() == 0) {
      const std::uint32_t* const bh =
          a.bh_counters + item.batch * p.kv_heads + p.kv_head(item.head);
      while (arch::load_counter(bh) < static_cast<std::uint32_t>(a.reports)) arch::sleep();
    }
    arch::barrier();
    if (begin < sequence.sq) convert_dq_rows<spec>(a, sequence, item, begin);
  }
  // One waiting workgroup orders the completion of this launch after main; the others free their
  // slots.
  if (arch::workgroup_id() == 0) arch::grid_dependency_wait();
}

}  // namespace rocflash::kernel
