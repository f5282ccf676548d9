#include "api/backends.hpp"

#include <iterator>

#include "core/error.hpp"
#include "cpu/backend.hpp"
#include "gpu/backend.hpp"
#include "reference/reference.hpp"

namespace rocflash {
namespace {

const Backend& select_gpu_backend(const rocflash_execution& in, Device device) {
  if (device.type != kDLROCM && device.type != kDLCUDA)
    refuse_unsupported("q is on ", device_text(device), "; it must be on cpu, rocm or cuda");
  if (in.backend != ROCFLASH_BACKEND_AUTO) {
    constexpr const char* names[] = {"auto", "cpu", "reference", "naive", "standard"};
    const bool known = in.backend > 0 && in.backend < static_cast<int>(std::size(names));
    refuse("backend is ", in.backend, known ? text(" (", names[in.backend], ")") : "",
           " and q is on ", device_text(device), "; backend must be 0 (auto) for GPU tensors");
  }
  return gpu_backend(device.type, device.id);
}

}  // namespace

const Backend& select_backend(const rocflash_execution& in, Device device) {
  if (device.type != kDLCPU) return select_gpu_backend(in, device);
  switch (in.backend) {
    case ROCFLASH_BACKEND_AUTO:
    case ROCFLASH_BACKEND_CPU:
      return cpu_backend();
    case ROCFLASH_BACKEND_REFERENCE:
      return reference_backend();
    case ROCFLASH_BACKEND_NAIVE:
      return naive_backend();
    case ROCFLASH_BACKEND_STANDARD:
      return standard_backend();
    default:
      refuse("backend is ", in.backend,
             "; it must be 0 (auto), 1 (cpu), 2 (reference), 3 (naive) or 4 (standard)");
  }
}

}  // namespace rocflash
