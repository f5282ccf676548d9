// Measurements for the rocflash command. Not part of the C ABI; may change with any version.
#pragma once

#include <rocflash/rocflash.h>

extern "C" {

// Enqueues a read-bandwidth kernel of `groups` workgroups: 16-byte loads over `bytes` bytes of
// `data`. `found`: four bytes of device memory that the kernel may write, so that no load is dead
// code.
ROCFLASH_API rocflash_status rocflash_measure_read(DLDevice device, const void* data, size_t bytes,
                                                   int32_t groups, void* found, void* stream);
}
