// Opens a GPU driver's library at run time: nothing of ROCm or CUDA is linked, so one binary serves
// every machine.
#pragma once

#include <span>
#include <string>

namespace rocflash::gpu {

struct Library {
  void* handle = nullptr;  // never closed: drivers do not survive it
  std::string path;        // what was opened, or empty
  std::string reason;      // how it was found, or why it was not
};

// The order of attempts: the environment's word, a copy that the process has already loaded (a
// framework's own), then the names from first to last.
Library open_library(const char* variable, std::span<const char* const> names);

}  // namespace rocflash::gpu
