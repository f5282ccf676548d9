// State of the HIP runtime, and helpers of its calls.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "core/launch.h"
#include "core/settings.h"
#include "hip/hip_abi.h"

namespace rocflash::sim {

class Runtime {
 public:
  // Reads the settings on first use; throws when they are wrong.
  static Runtime& instance();

  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] int device_count() const { return static_cast<int>(settings_.devices.size()); }
  [[nodiscard]] const Target& target(int device) const {
    return *settings_.devices[static_cast<std::size_t>(device)];
  }
  [[nodiscard]] bool tracks_undefined() const { return settings_.checks.strict(); }

  // What the last failed launch reported and what the last launch counted, as JSON.
  std::string last_report;
  std::string last_counters;
  bool count_launches = false;
  // Predicted time of the last launch, as JSON, and the sum since the model was enabled.
  std::string last_time;
  bool time_launches = false;
  [[nodiscard]] bool environment_wants_time() const {
    return !settings_.time.empty() || !settings_.timeline.empty() ||
           !settings_.time_report.empty() || settings_.time_only;
  }
  double predicted_us = 0;
  std::mutex mutex;

 private:
  Runtime();
  Settings settings_;
};

int& current_device();
hipError_t set_last_error(hipError_t error);

// Runs the body of an API call: exceptions become error codes with a line on stderr.
template <typename F>
hipError_t guarded(const char* call, F body);

void print_error(const char* call, const char* what);

template <typename F>
hipError_t guarded(const char* call, F body) {
  try {
    return set_last_error(body());
  } catch (const std::bad_alloc&) {
    return set_last_error(hipErrorOutOfMemory);
  } catch (const std::exception& e) {
    print_error(call, e.what());
    return set_last_error(hipErrorInvalidValue);
  }
}

}  // namespace rocflash::sim
