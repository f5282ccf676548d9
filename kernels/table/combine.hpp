// The workgroup of the kernel that merges parts. One kernel serves all dtypes: parts are f32, and only
// results are rounded.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct CombineTile {
  int threads, waves_per_simd;
};
inline constexpr CombineTile combine_tile{256, 1};

constexpr KernelSpec combine_spec(Operation operation = Operation::combine) {
  return {operation, DType::f32, 0, Variant::any};
}

}  // namespace rocflash::kernel
