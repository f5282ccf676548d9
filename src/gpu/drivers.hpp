// The GPU drivers of this process and their devices: looked for once, on first use, and kept until
// the process ends.
//
// Nothing here is ever destroyed, and modules are never unloaded. At exit the drivers take their
// contexts down with all that was loaded into them, in an order that is theirs; a call from one of
// our destructors might reach a driver that is already gone.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "gpu/catalogue.hpp"
#include "gpu/driver.hpp"

namespace rocflash::gpu {

struct Device {
  int dlpack_type = 0, index = 0;  // kDLROCM or kDLCUDA
  DeviceFacts facts;
  std::string features;            // as the driver names them, separated by blanks
  const Target* target = nullptr;  // whose kernels it runs; null: there are none for it
};

struct DriverState {
  const char* name = "";     // "hip", "cuda"
  std::string library;       // what was opened, or empty
  std::string reason;        // why it is, or is not, in use
  Driver* driver = nullptr;  // null: not in use
  std::vector<Device> devices;
};

const std::array<DriverState, 2>& drivers();
const DriverState& driver_for(int dlpack_type);

// The architectures that a driver's devices may have here: "gfx90a, gfx942", or "none".
std::string built_for(int dlpack_type);

}  // namespace rocflash::gpu
