#include "device.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

#include "platform/program.hpp"
#include "platform/shared_library.hpp"
#include "verify/gpu.hpp"

namespace rocflash::cli {
namespace {

constexpr std::string_view amd_archs[]{
#define ROCFLASH_DEVICE(arch, ...) #arch,
#include "table/devices.inc"
};

// Empty, or why the simulator has no such device.
std::string unknown_simulated(const std::string& arch) {
  std::string known;
  for (const std::string_view each : amd_archs) {
    if (each == arch) return {};
    if (each.starts_with("gfx")) known += (known.empty() ? "" : ", ") + std::string(each);
  }
  return fmt::format("the simulator has no {}; it has {}", arch, known);
}

// The driver is opened later, in the first query of GPUs, and reads both variables then.
void start_simulator(const std::string& device, const std::string& arch) {
  const std::string path = simulator_library().string();
  platform::set_variable("ROCFLASH_SIM_ARCH", arch);
  std::string error;
  void* const simulator = platform::open_library(path.c_str(), error);
  if (!simulator || !platform::symbol_of(simulator, "rocflashSimLastReport"))
    throw Error(Status::unsupported,
                fmt::format("--device: {} needs the simulator, but {}; build it (make build), or "
                            "set ROCFLASH_SIM_LIBRARY to its {}",
                            device, simulator ? path + " is not a simulator" : error,
                            platform::simulator_name()));
  platform::set_variable("ROCFLASH_HIP_LIBRARY", path);
}

// A GPU whose driver does not work is no reason to use the CPU silently.
void warn_about_unused_gpus() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [name, node] : {std::pair("hip", "/dev/kfd"), {"cuda", "/dev/nvidiactl"}}) {
    std::error_code error;
    if (std::filesystem::exists(node, error)) found.emplace_back(name, node);
  }
  for (const platform::DisplayAdapter& adapter : platform::display_adapters()) {
    if (adapter.vendor == platform::amd_vendor) found.emplace_back("hip", adapter.name);
    if (adapter.vendor == platform::nvidia_vendor) found.emplace_back("cuda", adapter.name);
  }
  for (const auto& [name, sign] : found) {
    for (const rocflash_driver& d : drivers()) {
      if (name == d.name)
        fmt::print(stderr,
                   "rocflash: --device auto uses the CPU although {} exists: {}\n"
                   "rocflash: `rocflash doctor` says what to do; --device cpu omits this message\n",
                   sign, d.reason);
    }
  }
}

}  // namespace

CLI::Option* add_device_option(CLI::App& command, std::string& device) {
  device = "auto";
  const auto known = [](const std::string& text) {
    if (text == "auto") return std::string();
    try {
      const verify::DeviceName name(text);
      return name.simulated.empty() ? std::string() : unknown_simulated(name.simulated);
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  return command
      .add_option("--device", device,
                  "Device: cpu, hip:N (or rocm:N), cuda:N, sim:gfx942 for the simulator, or auto "
                  "for the best: AMD, NVIDIA, CPU")
      ->check(CLI::Validator(known, ""))
      ->type_name("DEVICE")
      ->capture_default_str();
}

std::string resolve_device(const std::string& device) {
  const bool best = device == "auto";
  if (!best) {
    const verify::DeviceName name(device);
    if (!name.simulated.empty()) start_simulator(device, name.simulated);
    return device;
  }
  const auto all = devices();  // the CPU, then AMD's, then NVIDIA's
  if (all.size() > 1) return device_name(all[1].device);
  warn_about_unused_gpus();
  return "cpu";
}

std::filesystem::path simulator_library() {
  if (const char* named = std::getenv("ROCFLASH_SIM_LIBRARY"); named && *named) return named;
  return platform::library_directory() / "sim" / platform::simulator_name();
}

std::string device_name(const DLDevice& device) {
  if (device.device_type == kDLCPU) return "cpu";
  return fmt::format("{}:{}", device.device_type == kDLROCM ? "hip" : "cuda", device.device_id);
}

}  // namespace rocflash::cli
