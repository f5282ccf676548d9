#include "gpu/driver/devices.hpp"

#include <dlpack/dlpack.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>

#include "core/error.hpp"
#include "core/fork_mutex.hpp"

namespace rocflash::gpu {
namespace {

constexpr const char* hip_names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                     "libamdhip64.so"};
constexpr const char* cuda_names[] = {"libcuda.so.1", "libcuda.so"};

struct Kind {
  const char* name;
  int dlpack_type;
  const char* variable;
  std::span<const char* const> names;
  decltype(make_hip_driver)* make;
};
constexpr Kind kinds[driver_count] = {
    {"hip", kDLROCM, "ROCFLASH_HIP_LIBRARY", hip_names, make_hip_driver},
    {"cuda", kDLCUDA, "ROCFLASH_CUDA_LIBRARY", cuda_names, make_cuda_driver}};

bool serves(int dlpack_type, const Target& target) {
  return std::string_view(target.arch).starts_with(dlpack_type == kDLROCM ? "gfx" : "sm_");
}

// ROCFLASH_HOPPER=0: for comparisons, and should a driver compile those kernels wrongly.
bool without_additions() {
  const char* wanted = std::getenv("ROCFLASH_HOPPER");
  return wanted && std::string_view(wanted) == "0";
}

std::vector<Device> devices_of(Driver& driver, int dlpack_type) {
  std::vector<Device> devices;
  const int count = driver.device_count();
  for (int n = 0; n < count; ++n) {
    DeviceFacts facts = driver.facts(n);
    const Target* target = target_for(facts.arch);
    std::string features = facts.arch;
    std::replace(features.begin(), features.end(), ':', ' ');
    const Target* addition = addition_for(facts.arch);
    if (addition && (without_additions() || !driver.serves_hopper())) addition = nullptr;
    if (addition) features += text(" ", addition->arch);
    devices.push_back({dlpack_type, n, std::move(facts), std::move(features), target, addition});
  }
  return devices;
}

// What came of looking for a driver; one that is in use comes with the state.
struct Outcome {
  DriverState state;
  std::unique_ptr<Driver> driver;
};

Outcome search(const Kind& kind) {
  const Library library = open_library(kind.variable, kind.names);
  Outcome found;
  DriverState& state = found.state;
  state.name = kind.name;
  state.library = library.path;
  state.reason = library.reason;
  if (!library.handle) return found;
  std::string why;
  auto driver = kind.make(library, why);
  if (!driver) {
    state.reason += "; not used, " + why;
    return found;
  }
  try {
    state.devices = devices_of(*driver, kind.dlpack_type);
  } catch (const Refusal& refusal) {
    state.reason += "; not used, " + refusal.message();
    state.failed = true;
    return found;
  }
  if (state.devices.empty()) {
    state.reason += "; not used, it has no device";
  } else if (built_for(kind.dlpack_type) == "none") {
    state.reason += "; not used, this build carries no kernels for it";
    state.devices.clear();
  } else {
    found.driver = std::move(driver);
    for (const Device& d : state.devices) {
      if (const Target* missed = addition_for(d.facts.arch); missed && !d.addition)
        state.reason += text("; device ", d.index, " does without the kernels of ", missed->arch,
                             without_additions()
                                 ? ", ROCFLASH_HOPPER is 0"
                                 : ", the driver lacks cuTensorMapEncodeTiled or cuLaunchKernelEx");
      if (!d.target)
        state.reason += text("; device ", d.index, ", ", d.facts.name, " (", d.facts.arch,
                             "), has no kernels here");
    }
  }
  return found;
}

struct Slot {
  ForkMutex mutex;
  std::atomic<const DriverState*> state{nullptr};
};
constinit Slot slots[driver_count];

}  // namespace

const DriverState& driver(std::size_t number) {
  Slot& slot = slots[number];
  const DriverState* state = slot.state.load(std::memory_order_acquire);
  if (state && state->driver) return *state;
  const std::lock_guard lock(slot.mutex);
  state = slot.state.load(std::memory_order_acquire);
  if (state && state->driver) return *state;
  Outcome found = search(kinds[number]);
  // Callers keep pointers to what they were told, so an answer is replaced only by another one.
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
