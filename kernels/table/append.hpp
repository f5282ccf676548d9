// The workgroup of the kernel that appends to the KV cache: each wave handles one row of one head
// at a time. One kernel serves all dtypes, since it moves few bytes.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct AppendTile {
  int threads, waves_per_simd;
};
inline constexpr AppendTile append_tile{256, 1};

constexpr KernelSpec append_spec() {
  return {Op::append, Schedule::tiled, DType::f32, 0, Variant::any};
}

}  // namespace rocflash::kernel
