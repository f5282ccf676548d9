// Merges attention over parts of the keys on Hopper, in a launch that starts while the one that computes the parts still
// runs: what a launch takes is over by the time the parts are there.
#pragma once

#include "combine/rows.hpp"
#include "combine/sm90_wide.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void combine_early(const CombineArguments& a) {
  if constexpr (spec.bucket > 0) return combine_wide<spec>(a);
  arch::fetch_arguments(a);
  arch::wait_for_launch_before();
  arch::let_next_launch_start();
  combine<spec>(a);
}

}  // namespace rocflash::kernel
