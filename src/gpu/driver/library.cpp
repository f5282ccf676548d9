#include "gpu/driver/library.hpp"

#include <utility>

#include "platform/process.hpp"

namespace rocflash::gpu {

Library open_library(const char* variable, std::span<const char* const> names, bool privileged) {
  const platform::Variable given(variable);
  const char* const path = given.get() && *given.get() ? given.get() : nullptr;
  if (path && !privileged) {
    std::string why;
    if (void* handle = platform::open_library(path, why))
      return {handle, path, std::string("opened from ") + variable};
    return {nullptr, "", std::string(variable) + " is set, but: " + why};
  }
  const std::string ignored =
      path ? "; " + std::string(variable) + " is ignored because this process is privileged" : "";
  std::string tried;
  for (const char* name : names) {
    if (void* handle = platform::loaded_library(name))
      return {handle, name, "already loaded by this process" + ignored};
    tried += (tried.empty() ? "" : ", ") + std::string(name);
  }
  if (platform::InstalledLibrary found = platform::open_installed_library(names); found.library)
    return {found.library, std::move(found.path), found.where + ignored};
  return {nullptr, "",
          "not found; tried " + tried +
              (privileged ? ignored : "; set " + std::string(variable) + " to its path")};
}

}  // namespace rocflash::gpu
