// The workgroup of the kernels that write s_dmask: each wave handles one row at a time.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct WeightsTile {
  int threads, waves_per_simd;
};
inline constexpr WeightsTile weights_tile{256, 1};

constexpr KernelSpec weights_spec(DType dtype) {
  return {Op::weights, Schedule::tiled, dtype, 0, Variant::any};
}

}  // namespace rocflash::kernel
