// Memory: allocation, copies, fills, registration of host memory.
#include <cstring>

#include "hip/graph.h"
#include "hip/runtime.h"

namespace rocflash::sim {
namespace {

hipError_t allocate(void** pointer, std::size_t size, const char* kind, bool track) {
  if (pointer == nullptr) return hipErrorInvalidValue;
  *pointer = nullptr;
  if (const hipError_t error = check_unsafe_call(); error != hipSuccess) return error;
  if (size == 0) return hipSuccess;
  *pointer = Memory::instance().allocate(
      size, kind, track && Runtime::instance().tracks_undefined(), current_device());
  return *pointer == nullptr ? hipErrorOutOfMemory : hipSuccess;
}

hipError_t release(void* pointer) {
  if (pointer == nullptr) return hipSuccess;
  if (const hipError_t error = check_unsafe_call(); error != hipSuccess) return error;
  return Memory::instance().release(pointer) ? hipSuccess : hipErrorInvalidValue;
}

// The copy must be inside one allocation of device memory.
bool covered(const void* pointer, std::size_t size) {
  const Allocation* a = Memory::instance().find(reinterpret_cast<u64>(pointer));
  return a != nullptr && a->contains(reinterpret_cast<u64>(pointer), size);
}

hipError_t copy(void* to, const void* from, std::size_t size, hipMemcpyKind kind) {
  if (size == 0) return hipSuccess;
  if (to == nullptr || from == nullptr) return hipErrorInvalidValue;
  const bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  const bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault) return hipErrorInvalidMemcpyDirection;
  if ((to_device && !covered(to, size)) || (from_device && !covered(from, size))) {
    print_error("hipMemcpy",
                Memory::instance().describe(reinterpret_cast<u64>(to_device ? to : from)).c_str());
    return hipErrorInvalidValue;
  }
  std::memmove(to, from, size);
  Memory::instance().copy_definedness(to, from, size);
  return hipSuccess;
}

template <typename T>
hipError_t fill(void* to, T value, std::size_t count) {
  if (count == 0) return hipSuccess;
  if (to == nullptr || !covered(to, count * sizeof(T))) return hipErrorInvalidValue;
  std::fill_n(static_cast<T*>(to), count, value);
  Memory::instance().mark_defined(to, count * sizeof(T));
  return hipSuccess;
}

hipError_t copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                     std::size_t width, std::size_t height, hipMemcpyKind kind) {
  if (width > to_pitch || width > from_pitch) return hipErrorInvalidValue;
  for (std::size_t row = 0; row < height; ++row) {
    const hipError_t error = copy(static_cast<char*>(to) + row * to_pitch,
                                  static_cast<const char*>(from) + row * from_pitch, width, kind);
    if (error != hipSuccess) return error;
  }
  return hipSuccess;
}

// A synchronous call, and one that a stream's capture records.
template <typename F>
hipError_t now(const char* call, F body) {
  return guarded(call, [&] {
    const hipError_t error = check_unsafe_call();
    return error != hipSuccess ? error : body();
  });
}
template <typename F>
hipError_t in_stream(const char* call, hipStream_t stream, F body) {
  return guarded(call, [&] { return enqueue(stream, body); });
}

}  // namespace
}  // namespace rocflash::sim

using namespace rocflash::sim;

ROCFLASH_HIP_API hipError_t hipMalloc(void** pointer, std::size_t size) {
  return guarded("hipMalloc", [&] { return allocate(pointer, size, "hipMalloc", true); });
}
ROCFLASH_HIP_API hipError_t hipExtMallocWithFlags(void** pointer, std::size_t size, unsigned) {
  return hipMalloc(pointer, size);
}
ROCFLASH_HIP_API hipError_t hipMallocAsync(void** pointer, std::size_t size, hipStream_t) {
  return guarded("hipMallocAsync", [&] { return allocate(pointer, size, "hipMallocAsync", true); });
}
// The host writes managed and pinned memory directly, so it counts as defined.
ROCFLASH_HIP_API hipError_t hipMallocManaged(void** pointer, std::size_t size, unsigned) {
  return guarded("hipMallocManaged",
                 [&] { return allocate(pointer, size, "hipMallocManaged", false); });
}
ROCFLASH_HIP_API hipError_t hipHostMalloc(void** pointer, std::size_t size, unsigned) {
  return guarded("hipHostMalloc", [&] { return allocate(pointer, size, "hipHostMalloc", false); });
}
ROCFLASH_HIP_API hipError_t hipFree(void* pointer) {
  return guarded("hipFree", [&] { return release(pointer); });
}
ROCFLASH_HIP_API hipError_t hipFreeAsync(void* pointer, hipStream_t) {
  return guarded("hipFreeAsync", [&] { return release(pointer); });
}
ROCFLASH_HIP_API hipError_t hipHostFree(void* pointer) {
  return guarded("hipHostFree", [&] { return release(pointer); });
}

ROCFLASH_HIP_API hipError_t hipMemcpy(void* to, const void* from, std::size_t size,
                                      hipMemcpyKind kind) {
  return now("hipMemcpy", [=] { return copy(to, from, size, kind); });
}
ROCFLASH_HIP_API hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t size,
                                           hipMemcpyKind kind, hipStream_t stream) {
  return in_stream("hipMemcpyAsync", stream, [=] { return copy(to, from, size, kind); });
}
ROCFLASH_HIP_API hipError_t hipMemcpyWithStream(void* to, const void* from, std::size_t size,
                                                hipMemcpyKind kind, hipStream_t stream) {
  return guarded("hipMemcpyWithStream", [&] {
    const hipError_t error = check_not_capturing(stream);  // it waits for the stream
    return error != hipSuccess ? error : copy(to, from, size, kind);
  });
}
ROCFLASH_HIP_API hipError_t hipMemcpyHtoD(hipDeviceptr_t to, const void* from, std::size_t size) {
  return hipMemcpy(to, from, size, hipMemcpyHostToDevice);
}
ROCFLASH_HIP_API hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, std::size_t size) {
  return hipMemcpy(to, from, size, hipMemcpyDeviceToHost);
}
ROCFLASH_HIP_API hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from,
                                          std::size_t size) {
  return hipMemcpy(to, from, size, hipMemcpyDeviceToDevice);
}
ROCFLASH_HIP_API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void* from,
                                               std::size_t size, hipStream_t stream) {
  return hipMemcpyAsync(to, from, size, hipMemcpyHostToDevice, stream);
}
ROCFLASH_HIP_API hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, std::size_t size,
                                               hipStream_t stream) {
  return hipMemcpyAsync(to, from, size, hipMemcpyDeviceToHost, stream);
}
ROCFLASH_HIP_API hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from,
                                               std::size_t size, hipStream_t stream) {
  return hipMemcpyAsync(to, from, size, hipMemcpyDeviceToDevice, stream);
}
ROCFLASH_HIP_API hipError_t hipMemcpy2D(void* to, std::size_t to_pitch, const void* from,
                                        std::size_t from_pitch, std::size_t width,
                                        std::size_t height, hipMemcpyKind kind) {
  return now("hipMemcpy2D",
             [=] { return copy_rows(to, to_pitch, from, from_pitch, width, height, kind); });
}
ROCFLASH_HIP_API hipError_t hipMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                                             std::size_t from_pitch, std::size_t width,
                                             std::size_t height, hipMemcpyKind kind,
                                             hipStream_t stream) {
  return in_stream("hipMemcpy2DAsync", stream,
                   [=] { return copy_rows(to, to_pitch, from, from_pitch, width, height, kind); });
}

ROCFLASH_HIP_API hipError_t hipMemset(void* to, int value, std::size_t size) {
  return now("hipMemset", [=] { return fill<u8>(to, static_cast<u8>(value), size); });
}
ROCFLASH_HIP_API hipError_t hipMemsetAsync(void* to, int value, std::size_t size,
                                           hipStream_t stream) {
  return in_stream("hipMemsetAsync", stream,
                   [=] { return fill<u8>(to, static_cast<u8>(value), size); });
}
ROCFLASH_HIP_API hipError_t hipMemsetD8(hipDeviceptr_t to, unsigned char value, std::size_t n) {
  return now("hipMemsetD8", [=] { return fill<u8>(to, value, n); });
}
ROCFLASH_HIP_API hipError_t hipMemsetD16(hipDeviceptr_t to, unsigned short value, std::size_t n) {
  return now("hipMemsetD16", [=] { return fill<u16>(to, value, n); });
}
ROCFLASH_HIP_API hipError_t hipMemsetD32(hipDeviceptr_t to, int value, std::size_t n) {
  return now("hipMemsetD32", [=] { return fill<int>(to, value, n); });
}
ROCFLASH_HIP_API hipError_t hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, std::size_t n,
                                             hipStream_t stream) {
  return in_stream("hipMemsetD8Async", stream, [=] { return fill<u8>(to, value, n); });
}
ROCFLASH_HIP_API hipError_t hipMemsetD16Async(hipDeviceptr_t to, unsigned short value,
                                              std::size_t n, hipStream_t stream) {
  return in_stream("hipMemsetD16Async", stream, [=] { return fill<u16>(to, value, n); });
}
ROCFLASH_HIP_API hipError_t hipMemsetD32Async(hipDeviceptr_t to, int value, std::size_t n,
                                              hipStream_t stream) {
  return in_stream("hipMemsetD32Async", stream, [=] { return fill<int>(to, value, n); });
}

ROCFLASH_HIP_API hipError_t hipHostRegister(void* pointer, std::size_t size, unsigned) {
  return guarded("hipHostRegister", [&] {
    if (Memory::instance().find(reinterpret_cast<u64>(pointer)) != nullptr) {
      return hipErrorHostMemoryAlreadyRegistered;
    }
    return Memory::instance().add(pointer, size, "registered host memory", current_device())
               ? hipSuccess
               : hipErrorInvalidValue;
  });
}
ROCFLASH_HIP_API hipError_t hipHostUnregister(void* pointer) {
  return guarded("hipHostUnregister", [&] {
    return Memory::instance().remove(pointer) ? hipSuccess : hipErrorHostMemoryNotRegistered;
  });
}
ROCFLASH_HIP_API hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned) {
  return guarded("hipHostGetDevicePointer", [&] {
    if (device == nullptr || !covered(host, 1)) return hipErrorInvalidValue;
    *device = host;
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipPointerGetAttributes(hipPointerAttribute_t* out,
                                                    const void* pointer) {
  return guarded("hipPointerGetAttributes", [&] {
    if (out == nullptr) return hipErrorInvalidValue;
    const Allocation* a = Memory::instance().find(reinterpret_cast<u64>(pointer));
    *out = {};
    if (a == nullptr) return hipSuccess;  // hipMemoryTypeUnregistered, as ROCm 6 answers
    auto* address = const_cast<void*>(pointer);
    const bool managed = a->kind == "hipMallocManaged";
    const bool host = a->kind == "hipHostMalloc" || a->kind == "registered host memory";
    out->type = managed ? hipMemoryTypeManaged : host ? hipMemoryTypeHost : hipMemoryTypeDevice;
    out->device = a->device;
    out->devicePointer = address;
    out->hostPointer = host || managed ? address : nullptr;
    out->isManaged = managed;
    return hipSuccess;
  });
}
