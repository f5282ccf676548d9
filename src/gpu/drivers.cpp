#include "gpu/drivers.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <initializer_list>

namespace rocflash {
namespace {

DriverSearch search(const char* name, const char* variable,
                    std::initializer_list<const char*> sonames) {
  const auto found = [&](const char* library, const char* how) {
    return DriverSearch{name, library,
                        std::string(how) + "; not used, this build carries no kernels for it"};
  };
  if (const char* override = std::getenv(variable); override && *override) {
    if (dlopen(override, RTLD_NOW | RTLD_LOCAL))
      return found(override, "found where the environment says");
    const char* why = dlerror();
    return {name, "",
            std::string(variable) + " is set, but: " + (why ? why : "it cannot be opened")};
  }
  std::string tried;
  for (const char* soname : sonames) {
    if (dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD))
      return found(soname, "already loaded by this process");
    tried += (tried.empty() ? "" : ", ") + std::string(soname);
  }
  for (const char* soname : sonames) {
    if (dlopen(soname, RTLD_NOW | RTLD_LOCAL)) return found(soname, "found on the library path");
  }
  return {name, "", "not found; looked for " + tried + " (" + variable + " names another)"};
}

}  // namespace

const std::array<DriverSearch, 2>& gpu_drivers() {
  static const std::array<DriverSearch, 2> drivers{
      search("hip", "ROCFLASH_HIP_LIBRARY",
             {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"}),
      search("cuda", "ROCFLASH_CUDA_LIBRARY", {"libcuda.so.1", "libcuda.so"})};
  return drivers;
}

}  // namespace rocflash
