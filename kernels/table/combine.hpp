// The workgroup of the kernel that merges parts. One kernel serves all dtypes: parts are f32, and only
// results are rounded.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct CombineTile {
  int threads, waves_per_simd;
};
inline constexpr CombineTile combine_tile{256, 1};

// combine_early has another kernel for rows of more than `narrow_columns` (combine/sm90_wide.hpp), whose waves load as
// many parts at once.
inline constexpr int narrow_columns = 256, wide_columns = 512, wide_parts = 8;
constexpr KernelSpec combine_spec(Operation operation = Operation::combine, int bucket = 0) {
  return {operation, DType::f32, bucket, Variant::any};
}

}  // namespace rocflash::kernel
