// The drivers' functions as types: the signature and the exported symbol of each line of
// symbols.inc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rocflash::gpu::symbols {

#define ROCFLASH_DRIVER_FUNCTION(need, name, exported, result, ...) \
  struct name {                                                     \
    using Type = result(__VA_ARGS__);                               \
    static constexpr const char* symbol = #exported;                \
  };
#define ROCFLASH_HIP_LAUNCH ROCFLASH_DRIVER_FUNCTION
#define ROCFLASH_CUDA_LAUNCH ROCFLASH_DRIVER_FUNCTION
#define ROCFLASH_DRIVER_MEMORY ROCFLASH_DRIVER_FUNCTION
#include "gpu/driver/symbols.inc"
#undef ROCFLASH_DRIVER_FUNCTION

}  // namespace rocflash::gpu::symbols
