#include "gpu/drivers.hpp"

#include <dlpack/dlpack.h>

#include <algorithm>
#include <string_view>

#include "api/error.hpp"

namespace rocflash::gpu {
namespace {

constexpr const char* hip_names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                     "libamdhip64.so"};
constexpr const char* cuda_names[] = {"libcuda.so.1", "libcuda.so"};

bool serves(int dlpack_type, const Target& target) {
  return std::string_view(target.arch).starts_with(dlpack_type == kDLROCM ? "gfx" : "sm_");
}

DriverState search(const char* name, int dlpack_type, const char* variable,
                   std::span<const char* const> names, decltype(make_hip_driver)* make) {
  const Library library = open_library(variable, names);
  DriverState state{name, library.path, library.reason, nullptr, {}};
  if (!library.handle) return state;
  std::string why;
  auto driver = make(library, why);
  if (!driver) {
    state.reason += "; not used, " + why;
    return state;
  }
  try {
    const int count = driver->device_count();
    for (int n = 0; n < count; ++n) {
      DeviceFacts facts = driver->facts(n);
      const Target* target = target_for(facts.arch);
      std::string features = facts.arch;
      std::replace(features.begin(), features.end(), ':', ' ');
      state.devices.push_back({dlpack_type, n, std::move(facts), std::move(features), target});
    }
  } catch (const Refusal& refusal) {
    state.devices.clear();
    state.reason += "; not used, " + refusal.message();
    return state;
  }
  if (state.devices.empty()) {
    state.reason += "; not used, it has no device";
  } else if (built_for(dlpack_type) == "none") {
    state.reason += "; not used, this build carries no kernels for it";
    state.devices.clear();
  } else {
    state.driver = driver.release();
    for (const Device& d : state.devices) {
      if (!d.target)
        state.reason += text("; device ", d.index, ", ", d.facts.name, " (", d.facts.arch,
                             "), has no kernels here");
    }
  }
  return state;
}

}  // namespace

const std::array<DriverState, 2>& drivers() {
  static const auto* all = new std::array<DriverState, 2>{
      search("hip", kDLROCM, "ROCFLASH_HIP_LIBRARY", hip_names, make_hip_driver),
      search("cuda", kDLCUDA, "ROCFLASH_CUDA_LIBRARY", cuda_names, make_cuda_driver)};
  return *all;
}

const DriverState& driver_for(int dlpack_type) { return drivers()[dlpack_type == kDLROCM ? 0 : 1]; }

std::string built_for(int dlpack_type) {
  std::string archs;
  for (const Target& target : targets()) {
    if (serves(dlpack_type, target))
      archs += (archs.empty() ? "" : ", ") + std::string(target.arch);
  }
  return archs.empty() ? "none" : archs;
}

}  // namespace rocflash::gpu
