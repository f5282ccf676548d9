// A tensor as Hopper's copy engine knows it. The driver writes the map (src/gpu/driver), a kernel
// has it among its arguments and names it in copies.
#pragma once

#include <cstdint>

namespace rocflash::kernel {

struct alignas(64) TensorMap {
  std::uint64_t opaque[16] = {};
};

}  // namespace rocflash::kernel
