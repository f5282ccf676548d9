// The GPU drivers of this process and their devices: looked for on first use. A driver that is in
// use stays so until the process ends. One that is not is looked for again by the next call: its
// library may have been loaded by then, and what failed once (no permission yet, a device that was
// just being reset) may work.
//
// Nothing here is ever destroyed, and modules are never unloaded. At exit the drivers take their
// contexts down with all that was loaded into them, in an order that is theirs; a call from one of
// our destructors might reach a driver that is already gone.
#pragma once

#include <string>
#include <vector>

#include "gpu/catalogue.hpp"
#include "gpu/driver/driver.hpp"

namespace rocflash::gpu {

struct Device {
  int dlpack_type = 0, index = 0;  // kDLROCM or kDLCUDA
  DeviceFacts facts;
  std::string features;              // as the driver names them, separated by blanks
  const Target* target = nullptr;    // whose kernels it runs; null: there are none for it
  const Target* addition = nullptr;  // whose kernels it runs beside those; null: no others
};

struct DriverState {
  const char* name = "";     // "hip", "cuda"
  std::string library;       // what was opened, or empty
  std::string reason;        // why it is, or is not, in use
  Driver* driver = nullptr;  // null: not in use
  bool failed = false;       // not in use because the driver itself reported an error
  std::vector<Device> devices;
};

// By number, in the order in which they are listed: HIP, CUDA. What is returned stays for good.
inline constexpr std::size_t driver_count = 2;
const DriverState& driver(std::size_t number);
const DriverState& driver_for(int dlpack_type);

// The architectures that a driver's devices may have here: "gfx90a, gfx942", or "none".
std::string built_for(int dlpack_type);

}  // namespace rocflash::gpu
