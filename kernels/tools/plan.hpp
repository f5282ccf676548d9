// The kernels that table.hpp promises, by name: what the build's report is held to.
#pragma once

#include <string_view>
#include <vector>

#include "table.hpp"

namespace rocflash::kernel {

struct Plan {
  std::string_view name;
  int threads;
  int waves_per_simd;
  int dynamic_shared;
};

inline std::vector<Plan> plans_of(Family family) {
  std::vector<Plan> plans;
#define ROCFLASH_PLAN(dtype, bucket, variant)                                  \
  {                                                                            \
    const ForwardTile tile = forward_tile(family, bucket, Variant::variant);   \
    plans.push_back({"forward_" #dtype "_" #bucket "_" #variant, tile.threads, \
                     tile.waves_per_simd, tile.dynamic_shared});               \
  }
  ROCFLASH_FORWARD_KERNELS(ROCFLASH_PLAN)
#undef ROCFLASH_PLAN
#define ROCFLASH_PLAN(dtype) \
  plans.push_back({"weights_" #dtype, weights_tile.threads, weights_tile.waves_per_simd, 0});
  ROCFLASH_WEIGHTS_KERNELS(ROCFLASH_PLAN)
#undef ROCFLASH_PLAN
  return plans;
}

}  // namespace rocflash::kernel
