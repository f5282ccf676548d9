// Looks for the GPU drivers at run time: nothing of ROCm or CUDA is linked, so one binary serves
// every machine.
#pragma once

#include <array>
#include <string>

namespace rocflash {

struct DriverSearch {
  const char* name;     // "hip", "cuda"
  std::string library;  // what was opened, or empty
  std::string reason;   // why it is, or is not, in use
};

// Searched once, on first use. The order of attempts: the environment's word, a copy that the
// process has already loaded (a framework's own), then the versioned names, then the plain one.
const std::array<DriverSearch, 2>& gpu_drivers();

}  // namespace rocflash
