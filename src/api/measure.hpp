// What the rocflash command asks of a device to compare it with, and no header tells of: it is not part of the C ABI and may
// change with any version.
#pragma once

#include <rocflash/rocflash.h>

extern "C" {

// Enqueues a kernel of `groups` workgroups that reads `bytes` from `data` on, sixteen at a time, and does nothing with them.
// `found`: four bytes of the device that it may write.
ROCFLASH_API rocflash_status rocflash_measure_read(DLDevice device, const void* data, size_t bytes,
                                                   int32_t groups, void* found, void* stream);
}
