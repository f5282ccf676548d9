#include "gpu/driver/library.hpp"

#include <sys/auxv.h>

#include <cstdlib>

namespace rocflash::gpu {

bool is_privileged() { return getauxval(AT_SECURE) != 0; }

Library open_library(const char* variable, std::span<const char* const> names, bool privileged) {
  const char* named = std::getenv(variable);
  if (named && !*named) named = nullptr;
  if (named && !privileged) {
    if (void* handle = dlopen(named, RTLD_NOW | RTLD_LOCAL))
      return {handle, named, "found where the environment says"};
    const char* why = dlerror();
    return {nullptr, "",
            std::string(variable) + " is set, but: " + (why ? why : "it cannot be opened")};
  }
  const std::string ignored =
      named ? "; " + std::string(variable) + " is ignored, this program is privileged" : "";
  std::string tried;
  for (const char* name : names) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD))
      return {handle, name, "already loaded by this process" + ignored};
    tried += (tried.empty() ? "" : ", ") + std::string(name);
  }
  for (const char* name : names) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return {handle, name, "found on the library path" + ignored};
  }
  return {nullptr, "",
          "not found; looked for " + tried +
              (privileged ? ignored : " (" + std::string(variable) + " names another)")};
}

}  // namespace rocflash::gpu
