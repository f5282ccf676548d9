// GPUs as devices: a backend for each that has kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/backend.hpp"

namespace rocflash {

// The backend of a device by DLPack's type and index, as tensors name it. Refuses, by the name of
// q, a device that is not there or has no kernels.
const Backend& gpu_backend(int dlpack_type, int index);

// Memory of a device that one launch of `groups` workgroups reads, and does nothing with: a measure for kernels that must
// read as much. `found` are four bytes that the kernel may write.
struct MemoryRead {
  const std::byte* data = nullptr;  // on 16 bytes
  std::int64_t bytes = 0;           // a multiple of 16
  std::int32_t groups = 1;
  std::uint32_t* found = nullptr;
};
void read_on_gpu(int dlpack_type, int index, const MemoryRead& read, void* stream);

}  // namespace rocflash
