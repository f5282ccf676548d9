// Decode over many keys on Hopper: decode/sm80.hpp, in a launch that starts while the one before it still runs. What a
// launch takes is over by the time that one has ended.
#pragma once

#include "decode/sm80.hpp"

namespace rocflash::kernel {

struct OverlappingLaunches {
  static void wait_for_last() { arch::wait_for_launch_before(); }
  static void let_next_start() { arch::let_next_launch_start(); }
};

template <KernelSpec spec>
void decode_long(const DecodeArguments& a) {
  arch::fetch_arguments(a);
  decode<spec, OverlappingLaunches>(a);
}

}  // namespace rocflash::kernel
