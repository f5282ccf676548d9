#include "gpu/driver/devices.hpp"

#include <dlpack/dlpack.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include "core/error.hpp"
#include "core/fork_mutex.hpp"
#include "platform/process.hpp"

namespace rocflash::gpu {
namespace {

struct DriverKind {
  const char* name;
  int dlpack_type;
  const char* variable;
  std::span<const char* const> (*names)();
  decltype(make_hip_driver)* make;
};
constexpr DriverKind kinds[driver_count] = {
    {"hip", kDLROCM, "ROCFLASH_HIP_LIBRARY", platform::hip_driver_names, make_hip_driver},
    {"cuda", kDLCUDA, "ROCFLASH_CUDA_LIBRARY", platform::cuda_driver_names, make_cuda_driver}};

bool serves(int dlpack_type, const Target& target) {
  return std::string_view(target.arch).starts_with(dlpack_type == kDLROCM ? "gfx" : "sm_");
}

// ROCFLASH_HOPPER=0 disables the sm_90a kernels: for comparisons, and as a workaround for JIT bugs.
bool hopper_disabled() {
  const platform::Variable variable("ROCFLASH_HOPPER");
  return variable.get() && std::string_view(variable.get()) == "0";
}

std::vector<Device> devices_of(Driver& driver, int dlpack_type) {
  std::vector<Device> devices;
  const int count = driver.device_count();
  for (int n = 0; n < count; ++n) {
    DeviceFacts facts = driver.facts(n);
    const Target* target = target_for(facts.arch);
    std::string features = facts.arch;
    std::replace(features.begin(), features.end(), ':', ' ');
    const Target* extension = extension_for(facts.arch);
    if (extension && (hopper_disabled() || !driver.supports_sm90())) extension = nullptr;
    if (extension) features += text(" ", extension->arch);
    devices.push_back({dlpack_type, n, std::move(facts), std::move(features), target, extension});
  }
  return devices;
}

// The result of a search; `driver` is null when it is not in use.
struct SearchResult {
  DriverState state;
  std::unique_ptr<Driver> driver;
};

SearchResult search(const DriverKind& kind) {
  const Library library = open_library(kind.variable, kind.names());
  SearchResult found;
  DriverState& state = found.state;
  state.name = kind.name;
  state.library = library.path;
  state.reason = library.reason;
  if (!library.handle) return found;
  std::string why;
  auto driver = kind.make(library, why);
  if (!driver) {
    state.reason += "; not used: " + why;
    return found;
  }
  try {
    state.devices = devices_of(*driver, kind.dlpack_type);
  } catch (const Refusal& refusal) {
    state.reason += "; not used: " + refusal.message();
    state.failed = true;
    return found;
  }
  if (state.devices.empty()) {
    state.reason += "; not used: it reports no device";
  } else if (built_for(kind.dlpack_type) == "none") {
    state.reason += "; not used: this build has no kernels for it";
    state.devices.clear();
  } else {
    found.driver = std::move(driver);
    for (const Device& d : state.devices) {
      if (const Target* unused = extension_for(d.facts.arch); unused && !d.extension)
        state.reason +=
            text("; device ", d.index, " does not use the kernels of ", unused->arch,
                 hopper_disabled()
                     ? " because ROCFLASH_HOPPER is 0"
                     : " because the driver lacks cuTensorMapEncodeTiled or cuLaunchKernelEx");
      if (!d.target)
        state.reason += text("; device ", d.index, ", ", d.facts.name, " (", d.facts.arch,
                             "), has no kernels in this build");
    }
  }
  return found;
}

struct DriverSlot {
  ForkMutex mutex;
  std::atomic<const DriverState*> state{nullptr};
};
constinit DriverSlot slots[driver_count];

}  // namespace

const DriverState& driver(std::size_t number) {
  DriverSlot& slot = slots[number];
  const DriverState* state = slot.state.load(std::memory_order_acquire);
  if (state && state->driver) return *state;
  const std::lock_guard lock(slot.mutex);
  state = slot.state.load(std::memory_order_acquire);
  if (state && state->driver) return *state;
  SearchResult found = search(kinds[number]);
  // Callers keep pointers to the state, so it is replaced only when it has changed.
  if (state && !found.driver && state->reason == found.state.reason &&
      state->library == found.state.library)
    return *state;
  auto fresh = std::make_unique<DriverState>(std::move(found.state));
  fresh->driver = found.driver.release();
  slot.state.store(fresh.get(), std::memory_order_release);
  return *fresh.release();
}

const DriverState& driver_for(int dlpack_type) { return driver(dlpack_type == kDLROCM ? 0 : 1); }

std::string built_for(int dlpack_type) {
  std::string archs;
  for (const Target& target : targets()) {
    if (serves(dlpack_type, target))
      archs += (archs.empty() ? "" : ", ") + std::string(target.arch);
  }
  return archs.empty() ? "none" : archs;
}

}  // namespace rocflash::gpu
