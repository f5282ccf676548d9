// The device properties that kernel selection and heuristics depend on.
#pragma once

#include <cstdint>

#include "table/families.hpp"

namespace rocflash::gpu {

struct Chip {
  kernel::Family family;
  int units = 0;             // compute units or multiprocessors
  int workgroup_shared = 0;  // maximum bytes of shared memory per workgroup; 0: unknown
  bool has_sm90 = false;     // it also runs the kernels of the sm_90a extension
};

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace rocflash::gpu
