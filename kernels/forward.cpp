// Instantiates the forward kernels of one architecture from the table.
// All device code is inlined into its kernel: a call would need a stack.
#pragma clang attribute push([[gnu::always_inline]], apply_to = function)
#include "attention/forward.hpp"
#pragma clang attribute pop

#define ROCFLASH_INSTANTIATE(dtype, bucket, variant)                                               \
  ROCFLASH_KERNEL(forward_##dtype##_##bucket##_##variant,                                          \
                  (rocflash::kernel::forward_tile(rocflash::kernel::this_family, bucket,           \
                                                  rocflash::kernel::Variant::variant)),            \
                  rocflash::kernel::ForwardArguments) {                                            \
    rocflash::kernel::forward<rocflash::DType::dtype, bucket, rocflash::kernel::Variant::variant>( \
        arguments);                                                                                \
  }
ROCFLASH_FORWARD_KERNELS(ROCFLASH_INSTANTIATE)
