// Functions of a library by name, and which of them are missing.
#pragma once

#include <dlfcn.h>

#include <string>

#include "gpu/library.hpp"

namespace rocflash::gpu {

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
