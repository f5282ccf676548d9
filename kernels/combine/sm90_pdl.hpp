// Combine kernel on Hopper, launched with PDL: its launch latency overlaps with the decode kernel
// that computes the partial results.
#pragma once

#include "combine/rows.hpp"
#include "combine/sm90_mla.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void combine_pdl(const CombineArguments& a) {
  if constexpr (spec.bucket > 0) return combine_mla<spec>(a);
  arch::prefetch_kernel_params(a);
  arch::grid_dependency_wait();
  arch::launch_dependents();
  combine<spec>(a);
}

}  // namespace rocflash::kernel
