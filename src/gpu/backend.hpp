// The GPU backend: one instance per device that this library has kernels for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/backend.hpp"
#include "gpu/dispatch/chip.hpp"

namespace rocflash {

// The backend of a device, which DLPack's device type and index identify. Rejects a device that is
// missing or that has no kernels; the message names q.
const Backend& gpu_backend(int dlpack_type, int index);

// What kernel selection depends on, and the architecture, of such a device.
struct GpuDescription {
  gpu::Chip chip;
  const char* arch;
};
GpuDescription describe_gpu(int dlpack_type, int index);

// One launch of `groups` workgroups that only reads memory: the achievable bandwidth, which
// memory-bound kernels are compared with. The kernel may write the four bytes of `found`.
struct MemoryRead {
  const std::byte* data = nullptr;  // aligned to 16 bytes
  std::int64_t bytes = 0;           // a multiple of 16
  std::int32_t groups = 1;
  std::uint32_t* found = nullptr;
};
void read_on_gpu(int dlpack_type, int index, const MemoryRead& read, void* stream);

}  // namespace rocflash
