// The GPU drivers of this process and their devices, opened on first use. A driver in use stays in
// use until the process exits. A missing driver is searched again by the next call: its library may
// have been loaded meanwhile, and a transient error (permissions, a device reset) may be gone.
//
// Nothing here is ever destroyed, and modules are never unloaded. At exit the drivers destroy their
// contexts in an order of their own; a call from a destructor here could reach a driver that has
// already shut down.
#pragma once

#include <string>
#include <vector>

#include "gpu/catalog.hpp"
#include "gpu/driver/driver.hpp"

namespace rocflash::gpu {

struct Device {
  int dlpack_type = 0, index = 0;  // kDLROCM or kDLCUDA
  DeviceFacts facts;
  std::string features;               // as the driver reports them, space-separated
  const Target* target = nullptr;     // the kernels it runs; null: none in this build
  const Target* extension = nullptr;  // further kernels it runs (sm_90a); null: none
};

struct DriverState {
  const char* name = "";     // "hip", "cuda"
  std::string library;       // the library that was opened, or empty
  std::string reason;        // why it is or is not in use
  Driver* driver = nullptr;  // null: not in use
  bool failed = false;       // not in use because the driver itself reported an error
  std::vector<Device> devices;
};

// By number: HIP, CUDA. The returned state is never destroyed.
inline constexpr std::size_t driver_count = 2;
const DriverState& driver(std::size_t number);
const DriverState& driver_for(int dlpack_type);

// The architectures of this build for a driver: "gfx90a, gfx942", or "none".
std::string built_for(int dlpack_type);

}  // namespace rocflash::gpu
