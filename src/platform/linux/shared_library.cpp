#include "platform/shared_library.hpp"

#include <dlfcn.h>
#include <sys/auxv.h>

namespace rocflash::platform {

std::span<const char* const> hip_driver_names() {
  static constexpr const char* names[] = {"libamdhip64.so.7", "libamdhip64.so.6",
                                          "libamdhip64.so.5", "libamdhip64.so"};
  return names;
}

std::span<const char* const> cuda_driver_names() {
  static constexpr const char* names[] = {"libcuda.so.1", "libcuda.so"};
  return names;
}

void* open_library(const char* path, std::string& error) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    error = why ? why : "it cannot be opened";
  }
  return library;
}

void* loaded_library(const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); }

void close_library(void* library) { dlclose(library); }

void* symbol_of(void* library, const char* name) { return dlsym(library, name); }

InstalledLibrary open_installed_library(std::span<const char* const> names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return {library, name, "found on the library path"};
  }
  return {};
}

void pin_library_of(const void* code) {
  Dl_info library{};
  if (dladdr(code, &library) != 0 && library.dli_fname)
    dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

bool is_privileged() { return getauxval(AT_SECURE) != 0; }

}  // namespace rocflash::platform
