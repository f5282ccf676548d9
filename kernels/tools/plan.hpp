// The kernels that table.hpp promises, by name: what the build's report is held to.
#pragma once

#include <optional>
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

inline constexpr std::string_view family_names[] = {"cdna2", "cdna3", "cdna4", "rdna2",
                                                    "rdna3", "rdna4", "nvidia"};

inline std::optional<Family> family_of(std::string_view name) {
  for (std::size_t i = 0; i < std::size(family_names); ++i) {
    if (family_names[i] == name) return static_cast<Family>(i);
  }
  return std::nullopt;
}

}  // namespace rocflash::kernel
