// The driver interface: what a launch needs. Nothing here allocates, copies or synchronizes.
// Failures are thrown as Refusal with ROCFLASH_DEVICE_ERROR and the driver's own message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "arch/tensor_map.hpp"
#include "core/dtype.hpp"
#include "gpu/driver/library.hpp"

namespace rocflash::gpu {

using Module = void*;
using Function = void*;

struct DeviceFacts {
  std::string name;  // "AMD Instinct MI300X"
  std::string arch;  // "gfx942:sramecc+:xnack-", "sm_90"
  int units = 0;     // compute units or multiprocessors
  // Maximum bytes of shared memory per workgroup; 0: see kernels/table/devices.inc.
  int workgroup_shared = 0;
};

// The context made current for this thread, and the state to restore.
struct ContextState {
  std::uint64_t context = 0;  // unique id of the context that owns the modules
  int previous_device = 0;    // HIP: the device that was current before
  bool changed = false;
};

struct LaunchShape {
  std::uint32_t grid_x = 0, threads = 0, dynamic_shared = 0;
  // Hopper only: the other grid dimensions, the cluster size along x, and programmatic dependent
  // launch: the kernel starts before the previous one ends, and waits for its results itself.
  std::uint32_t grid_y = 1, grid_z = 1, cluster = 1;
  bool pdl = false;

  bool operator==(const LaunchShape&) const = default;
};

// A tensor of 16-bit elements for TMA: columns, rows, heads, batches, and the box of one load.
struct TensorMapDesc {
  const void* data = nullptr;
  DType dtype = DType::f16;
  std::uint64_t sizes[4] = {};
  std::uint64_t strides[3] = {};  // of rows, heads and batches, in bytes
  std::uint32_t box_columns = 0, box_rows = 0;
  kernel::TensorMap* map = nullptr;  // written by encode_tensor_map

  static constexpr int dimensions = 4;
};

class Driver {
 public:
  virtual ~Driver() = default;

  // Called once, before any other function.
  virtual int device_count() = 0;
  virtual DeviceFacts facts(int device) = 0;

  virtual ContextState enter(int device) = 0;
  virtual void leave(const ContextState& state) noexcept = 0;

  // Whether the driver encodes tensor maps and launches clusters, which the sm_90a kernels need.
  virtual bool supports_sm90() const { return false; }
  virtual void encode_tensor_map(const TensorMapDesc&) {}

  // These act on the current device.
  virtual Module load(const std::byte* image) = 0;
  virtual Function function(Module module, const char* name, std::uint32_t dynamic_shared) = 0;
  virtual void launch(Function function, const LaunchShape& shape, void* stream,
                      const void* arguments) = 0;
};

// A driver function and its argument, for messages.
inline std::string call_text(const char* call, const char* argument) {
  return argument ? std::string(call) + "(" + argument + ")" : call;
}

// Null, and the reason, when the library lacks a required function.
std::unique_ptr<Driver> make_hip_driver(const Library& library, std::string& reason);
std::unique_ptr<Driver> make_cuda_driver(const Library& library, std::string& reason);

// Makes a device current for its scope.
class DeviceGuard {
 public:
  DeviceGuard(Driver& driver, int device) : driver_(driver), state_(driver.enter(device)) {}
  ~DeviceGuard() { driver_.leave(state_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  std::uint64_t context() const { return state_.context; }

 private:
  Driver& driver_;
  ContextState state_;
};

}  // namespace rocflash::gpu
