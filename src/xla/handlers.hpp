// The custom calls of JAX: one handler per XLA platform, registered by python/rocflash/jax. A
// handler runs on XLA's thread. On a GPU it enqueues to XLA's stream and takes the workspace from
// XLA's allocator, so it neither allocates from the driver nor synchronizes.
#pragma once

#include <rocflash/rocflash.h>

#include "xla/abi.hpp"

extern "C" {
ROCFLASH_API rocflash::xla::Error* rocflash_xla_cpu(rocflash::xla::CallFrame* frame);
ROCFLASH_API rocflash::xla::Error* rocflash_xla_cuda(rocflash::xla::CallFrame* frame);
ROCFLASH_API rocflash::xla::Error* rocflash_xla_rocm(rocflash::xla::CallFrame* frame);
}
