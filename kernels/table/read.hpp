// The workgroup of the memory-read kernel.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct ReadTile {
  int threads, waves_per_simd;
};
inline constexpr ReadTile read_tile{256, 2};

constexpr KernelSpec read_spec() {
  return {Op::read_memory, Schedule::tiled, DType::f32, 0, Variant::any};
}

}  // namespace rocflash::kernel
