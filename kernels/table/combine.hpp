// The workgroup of the combine kernel. One kernel serves all dtypes: partial results are f32, and
// only outputs are rounded.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct CombineTile {
  int threads, waves_per_simd;
};
inline constexpr CombineTile combine_tile{256, 1};

// The PDL schedule has a kernel of its own for rows of more than `narrow_columns`
// (combine/sm90_mla.hpp), whose waves have the loads of `wide_splits` + 1 splits in flight.
inline constexpr int narrow_columns = 256, wide_columns = 512, wide_splits = 8;
constexpr KernelSpec combine_spec(Schedule schedule = Schedule::tiled, int bucket = 0) {
  return {Op::combine, schedule, DType::f32, bucket, Variant::any};
}

}  // namespace rocflash::kernel
