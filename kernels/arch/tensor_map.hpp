// CUtensorMap of a TMA access. The driver API encodes it on the host (src/gpu/driver); kernels get
// it as a __grid_constant__ parameter.
#pragma once

#include <cstdint>

namespace rocflash::kernel {

struct alignas(64) TensorMap {
  std::uint64_t opaque[16] = {};
};

}  // namespace rocflash::kernel
