// Devices and their properties.
#include <cstring>

#include "hip/graph.h"
#include "hip/runtime.h"

namespace rocflash::sim {
namespace {

constexpr std::size_t kSimulatedMemory = 16ull << 30;

template <typename T>
void put(void* base, std::size_t offset, T value) {
  std::memcpy(static_cast<char*>(base) + offset, &value, sizeof value);
}

void put_name(void* base, std::size_t offset, std::string_view name) {
  std::memcpy(static_cast<char*>(base) + offset, name.data(), name.size());
}

int threads_per_multiprocessor(const Target& t) {
  return t.max_waves_per_simd * t.simds_per_cu * t.native_wave();
}

// hipDeviceProp_t of ROCm 6 and 7: 1472 bytes.
void fill_r0600(void* p, const Target& t, int device) {
  std::memset(p, 0, 1472);
  put_name(p, 0, t.marketing_name);
  put<std::size_t>(p, 288, kSimulatedMemory);
  put<std::size_t>(p, 296, t.max_lds_bytes);
  put<int>(p, 304, 65536);
  put<int>(p, 308, t.native_wave());
  put<std::size_t>(p, 312, 0x7fffffff);
  put<int>(p, 320, 1024);
  for (std::size_t i = 0; i < 3; ++i) {
    put<int>(p, 324 + 4 * i, 1024);
    put<int>(p, 336 + 4 * i, i == 0 ? 0x7fffffff : 65536);
  }
  put<int>(p, 348, t.clock_khz);
  put<std::size_t>(p, 352, 0x7fffffff);
  put<int>(p, 360, t.major);
  put<int>(p, 364, t.minor);
  put<int>(p, 388, t.compute_units);
  put<int>(p, 400, 1);       // canMapHostMemory
  put<int>(p, 576, 1);       // concurrentKernels
  put<int>(p, 584, device);  // pciBusID
  put<int>(p, 604, 1);       // unifiedAddressing
  put<int>(p, 624, threads_per_multiprocessor(t));
  put<std::size_t>(p, 640, t.max_lds_bytes);
  put<int>(p, 652, 1);  // managedMemory
  put_name(p, 1160, t.name);
}

// hipDeviceProp_t of ROCm 5: 792 bytes.
void fill_rocm5(void* p, const Target& t, int device) {
  std::memset(p, 0, 792);
  put_name(p, 0, t.marketing_name);
  put<std::size_t>(p, 256, kSimulatedMemory);
  put<std::size_t>(p, 264, t.max_lds_bytes);
  put<int>(p, 272, 65536);
  put<int>(p, 276, t.native_wave());
  put<int>(p, 280, 1024);
  for (std::size_t i = 0; i < 3; ++i) {
    put<int>(p, 284 + 4 * i, 1024);
    put<int>(p, 296 + 4 * i, i == 0 ? 0x7fffffff : 65536);
  }
  put<int>(p, 308, t.clock_khz);
  put<std::size_t>(p, 320, 0x7fffffff);
  put<int>(p, 328, t.major);
  put<int>(p, 332, t.minor);
  put<int>(p, 336, t.compute_units);
  put<int>(p, 344, threads_per_multiprocessor(t));
  put<int>(p, 360, 1);
  put<int>(p, 368, device);
  put<std::size_t>(p, 376, t.max_lds_bytes);
  put<int>(p, 388, 1);
  put_name(p, 396, t.name);
}

bool valid(int device) { return device >= 0 && device < Runtime::instance().device_count(); }

// Numbers of hipDeviceAttribute_t.
hipError_t attribute(int* value, int which, const Target& t) {
  switch (which) {
    case 5:
      *value = t.clock_khz;
      return hipSuccess;
    case 16:
      *value = 0;
      return hipSuccess;  // integrated
    case 23:
      *value = t.major;
      return hipSuccess;
    case 24:
      *value = 1;
      return hipSuccess;  // managed memory
    case 26:
    case 27:
    case 28:
      *value = 1024;
      return hipSuccess;
    case 29:
      *value = 0x7fffffff;
      return hipSuccess;
    case 30:
    case 31:
      *value = 65536;
      return hipSuccess;
    case 56:
      *value = 1024;
      return hipSuccess;
    case 57:
      *value = threads_per_multiprocessor(t);
      return hipSuccess;
    case 61:
      *value = t.minor;
      return hipSuccess;
    case 63:
      *value = t.compute_units;
      return hipSuccess;
    case 74:
      *value = static_cast<int>(t.max_lds_bytes);
      return hipSuccess;
    case 87:
      *value = t.native_wave();
      return hipSuccess;
    default:
      return hipErrorInvalidValue;
  }
}

}  // namespace
}  // namespace rocflash::sim

using namespace rocflash::sim;

ROCFLASH_HIP_API hipError_t hipInit(unsigned) {
  return guarded("hipInit", [] {
    return Runtime::instance().device_count() > 0 ? hipSuccess : hipErrorNoDevice;
  });
}

ROCFLASH_HIP_API hipError_t hipGetDeviceCount(int* count) {
  return guarded("hipGetDeviceCount", [&] {
    if (count == nullptr) return hipErrorInvalidValue;
    *count = Runtime::instance().device_count();
    return *count > 0 ? hipSuccess : hipErrorNoDevice;
  });
}

ROCFLASH_HIP_API hipError_t hipGetDevice(int* device) {
  return guarded("hipGetDevice", [&] {
    if (device == nullptr) return hipErrorInvalidValue;
    *device = current_device();
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipSetDevice(int device) {
  return guarded("hipSetDevice", [&] {
    if (!valid(device)) return hipErrorInvalidDevice;
    current_device() = device;
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipDeviceGet(hipDevice_t* device, int ordinal) {
  return guarded("hipDeviceGet", [&] {
    if (device == nullptr || !valid(ordinal)) return hipErrorInvalidDevice;
    *device = ordinal;
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipDeviceGetName(char* name, int length, hipDevice_t device) {
  return guarded("hipDeviceGetName", [&] {
    if (name == nullptr || length <= 0) return hipErrorInvalidValue;
    if (!valid(device)) return hipErrorInvalidDevice;
    const auto text = Runtime::instance().target(device).marketing_name;
    const auto n = std::min<std::size_t>(text.size(), static_cast<std::size_t>(length) - 1);
    std::memcpy(name, text.data(), n);
    name[n] = '\0';
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipGetDevicePropertiesR0600(void* properties, int device) {
  return guarded("hipGetDevicePropertiesR0600", [&] {
    if (properties == nullptr) return hipErrorInvalidValue;
    if (!valid(device)) return hipErrorInvalidDevice;
    fill_r0600(properties, Runtime::instance().target(device), device);
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipGetDeviceProperties(void* properties, int device) {
  return guarded("hipGetDeviceProperties", [&] {
    if (properties == nullptr) return hipErrorInvalidValue;
    if (!valid(device)) return hipErrorInvalidDevice;
    fill_rocm5(properties, Runtime::instance().target(device), device);
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipDeviceGetAttribute(int* value, int which, int device) {
  return guarded("hipDeviceGetAttribute", [&] {
    if (value == nullptr) return hipErrorInvalidValue;
    if (!valid(device)) return hipErrorInvalidDevice;
    return attribute(value, which, Runtime::instance().target(device));
  });
}

ROCFLASH_HIP_API hipError_t hipDeviceComputeCapability(int* major, int* minor, hipDevice_t device) {
  return guarded("hipDeviceComputeCapability", [&] {
    if (major == nullptr || minor == nullptr) return hipErrorInvalidValue;
    if (!valid(device)) return hipErrorInvalidDevice;
    *major = Runtime::instance().target(device).major;
    *minor = Runtime::instance().target(device).minor;
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipDeviceTotalMem(std::size_t* bytes, hipDevice_t device) {
  return guarded("hipDeviceTotalMem", [&] {
    if (bytes == nullptr) return hipErrorInvalidValue;
    if (!valid(device)) return hipErrorInvalidDevice;
    *bytes = kSimulatedMemory;
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total) {
  return guarded("hipMemGetInfo", [&] {
    if (free == nullptr || total == nullptr) return hipErrorInvalidValue;
    *total = kSimulatedMemory;
    *free = kSimulatedMemory - std::min<u64>(kSimulatedMemory, Memory::instance().bytes_in_use());
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipRuntimeGetVersion(int* version) {
  if (version == nullptr) return hipErrorInvalidValue;
  *version = 60200000;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipDriverGetVersion(int* version) {
  return hipRuntimeGetVersion(version);
}

// Launches are synchronous: there is nothing to wait for.
ROCFLASH_HIP_API hipError_t hipDeviceSynchronize() { return set_last_error(check_unsafe_call()); }
ROCFLASH_HIP_API hipError_t hipDeviceReset() { return hipSuccess; }
ROCFLASH_HIP_API hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return guarded("hipDeviceCanAccessPeer", [&] {
    if (can == nullptr) return hipErrorInvalidValue;
    if (!valid(device) || !valid(peer)) return hipErrorInvalidDevice;
    *can = device != peer;
    return hipSuccess;
  });
}
ROCFLASH_HIP_API hipError_t hipDeviceEnablePeerAccess(int peer, unsigned) {
  return guarded("hipDeviceEnablePeerAccess",
                 [&] { return valid(peer) ? hipSuccess : hipErrorInvalidDevice; });
}
