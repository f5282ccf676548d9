// Instantiates the forward kernels of one architecture from the table.
#include "attention/forward.hpp"
#include "table.hpp"

#define ROCFLASH_INSTANTIATE(dtype, bucket, variant)                                                       \
  ROCFLASH_KERNEL(forward_##dtype##_##bucket##_##variant,                                                  \
                  (rocflash::kernel::forward_tile(rocflash::kernel::this_family, bucket,                   \
                                                  rocflash::kernel::Variant::variant)),                    \
                  rocflash::kernel::ForwardArguments) {                                                    \
    rocflash::kernel::forward<rocflash::DType::dtype, bucket, rocflash::kernel::Variant::variant>(arguments); \
  }
ROCFLASH_FORWARD_KERNELS(ROCFLASH_INSTANTIATE)
