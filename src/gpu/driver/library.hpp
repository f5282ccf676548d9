// Opens a GPU driver's shared library at run time. Nothing of ROCm or CUDA is linked, so one binary
// runs on every machine.
#pragma once

#include <span>
#include <string>

#include "platform/shared_library.hpp"

namespace rocflash::gpu {

struct Library {
  void* handle = nullptr;  // never closed: drivers do not support unloading
  std::string path;        // the name that was opened, or empty
  std::string reason;      // how it was found, or why it was not found
};

using platform::is_privileged;

// Tries the path in the environment variable, then a copy that the process has already loaded (a
// framework's own), then `names` where the system has its drivers.
Library open_library(const char* variable, std::span<const char* const> names,
                     bool privileged = is_privileged());

// Looks up functions of a library by name and collects the missing ones.
class Symbols {
 public:
  explicit Symbols(const Library& library) : library_(library) {}

  template <class Function>
  void required(Function*& function, const char* name) {
    optional(function, name);
    if (!function) missing_ += (missing_.empty() ? "" : ", ") + std::string(name);
  }
  template <class Function>
  void optional(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(platform::symbol_of(library_.handle, name));
  }
  const std::string& missing() const { return missing_; }

 private:
  const Library& library_;
  std::string missing_;
};

}  // namespace rocflash::gpu
