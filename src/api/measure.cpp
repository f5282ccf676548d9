#include "api/measure.hpp"

#include <limits>

#include "core/error.hpp"
#include "gpu/backend.hpp"

using namespace rocflash;

rocflash_status rocflash_measure_read(DLDevice device, const void* data, size_t bytes,
                                      int32_t groups, void* found, void* stream) {
  return guarded([&] {
    constexpr std::size_t unit = 16;
    constexpr int max_groups = std::numeric_limits<std::int32_t>::max() / 256;
    if (!data || reinterpret_cast<std::uintptr_t>(data) % unit != 0)
      refuse("data is ", reinterpret_cast<std::uintptr_t>(data), "; it must be a multiple of ",
             unit);
    if (bytes % unit != 0) refuse("bytes is ", bytes, "; it must be a multiple of ", unit);
    if (groups < 1 || groups > max_groups)
      refuse("groups is ", groups, "; it must be from 1 to ", max_groups);
    if (!found) refuse("found is null; the kernel may write to it");
    read_on_gpu(device.device_type, device.device_id,
                {static_cast<const std::byte*>(data), static_cast<std::int64_t>(bytes), groups,
                 static_cast<std::uint32_t*>(found)},
                stream);
  });
}
