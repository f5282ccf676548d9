// Instantiates the kernels that compute s_dmask.
// All device code is inlined into its kernel: a call would need a stack.
#pragma clang attribute push([[gnu::always_inline]], apply_to = function)
#include "attention/weights.hpp"
#pragma clang attribute pop

#define ROCFLASH_INSTANTIATE(dtype)                                \
  ROCFLASH_KERNEL(weights_##dtype, rocflash::kernel::weights_tile, \
                  rocflash::kernel::WeightsArguments) {            \
    rocflash::kernel::weights<rocflash::DType::dtype>(arguments);  \
  }
ROCFLASH_WEIGHTS_KERNELS(ROCFLASH_INSTANTIATE)
