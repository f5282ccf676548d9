#include "gpu/library.hpp"

#include <dlfcn.h>

#include <cstdlib>

namespace rocflash::gpu {

Library open_library(const char* variable, std::span<const char* const> names) {
  if (const char* named = std::getenv(variable); named && *named) {
    if (void* handle = dlopen(named, RTLD_NOW | RTLD_LOCAL))
      return {handle, named, "found where the environment says"};
    const char* why = dlerror();
    return {nullptr, "",
            std::string(variable) + " is set, but: " + (why ? why : "it cannot be opened")};
  }
  std::string tried;
  for (const char* name : names) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD))
      return {handle, name, "already loaded by this process"};
    tried += (tried.empty() ? "" : ", ") + std::string(name);
  }
  for (const char* name : names) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return {handle, name, "found on the library path"};
  }
  return {nullptr, "", "not found; looked for " + tried + " (" + variable + " names another)"};
}

}  // namespace rocflash::gpu
