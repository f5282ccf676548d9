// Opens a GPU driver's library at run time: nothing of ROCm or CUDA is linked, so one binary serves
// every machine.
#pragma once

#include <dlfcn.h>

#include <span>
#include <string>

namespace rocflash::gpu {

struct Library {
  void* handle = nullptr;  // never closed: drivers do not survive it
  std::string path;        // what was opened, or empty
  std::string reason;      // how it was found, or why it was not
};

// Whether this process runs with rights that its caller does not have (setuid, setgid, file
// capabilities). The environment is the caller's, so it must not name code to load then.
bool is_privileged();

// The order of attempts: what the environment names, a copy that the process has already loaded (a
// framework's own), then the names from first to last.
Library open_library(const char* variable, std::span<const char* const> names,
                     bool privileged = is_privileged());

// Functions of a library by name, and which of them are missing.
class Symbols {
 public:
  explicit Symbols(const Library& library) : library_(library) {}

  template <class Function>
  void need(Function*& function, const char* name) {
    optional(function, name);
    if (!function) missing_ += (missing_.empty() ? "" : ", ") + std::string(name);
  }
  template <class Function>
  void optional(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(dlsym(library_.handle, name));
  }
  const std::string& missing() const { return missing_; }

 private:
  const Library& library_;
  std::string missing_;
};

}  // namespace rocflash::gpu
