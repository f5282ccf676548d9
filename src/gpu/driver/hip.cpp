// The HIP driver: the part of its C ABI that a launch needs. It has been stable since ROCm 5,
// except for hipDeviceProp_t, which has two layouts.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.hpp"
#include "gpu/driver/driver.hpp"
#include "gpu/driver/symbols.hpp"

namespace rocflash::gpu {
namespace {

constexpr int capture_relaxed = 2;

// Offsets in hipDeviceProp_t.
struct PropertyOffsets {
  std::size_t arch, units;
};
constexpr PropertyOffsets rocm6{1160, 388}, rocm5{396, 336};
constexpr std::size_t arch_size = 256, name_size = 256;
constexpr std::size_t properties_size = 8192;  // larger than any version's

struct HipFunctions {
#define ROCFLASH_HIP_LAUNCH(need, name, ...) symbols::name::Type* name;
#include "gpu/driver/symbols.inc"
};

class HipDriver final : public Driver {
 public:
  explicit HipDriver(const HipFunctions& functions) : hip(functions) {}

  int device_count() override {
    int count = 0;
    check("hipGetDeviceCount", hip.hipGetDeviceCount(&count));
    return count;
  }

  DeviceFacts facts(int device) override {
    std::vector<char> properties(properties_size, 0);
    for (auto* get : {hip.hipGetDevicePropertiesR0600, hip.hipGetDeviceProperties}) {
      if (!get) continue;
      check("hipGetDeviceProperties", get(properties.data(), device));
      for (const PropertyOffsets& offsets : {rocm6, rocm5}) {
        DeviceFacts f{text_at(properties, 0, name_size),
                      text_at(properties, offsets.arch, arch_size), 0, 0};
        if (!f.arch.starts_with("gfx")) continue;
        std::memcpy(&f.units, properties.data() + offsets.units, sizeof f.units);
        return f;
      }
    }
    throw Refusal(ROCFLASH_DEVICE_ERROR,
                  text("hip: the properties of device ", device, " have no gcnArchName"));
  }

  ContextState enter(int device) override {
    ContextState state;
    check("hipGetDevice", hip.hipGetDevice(&state.previous_device));
    state.context = static_cast<std::uint64_t>(device);
    state.changed = state.previous_device != device;
    if (state.changed) check("hipSetDevice", hip.hipSetDevice(device));
    return state;
  }
  void leave(const ContextState& state) noexcept override {
    if (state.changed) hip.hipSetDevice(state.previous_device);
  }

  // Loading allocates, which stream capture in this thread would forbid; loads are not captured.
  Module load(const std::byte* image) override {
    int mode = capture_relaxed;
    const bool exchanged = hip.hipThreadExchangeStreamCaptureMode &&
                           hip.hipThreadExchangeStreamCaptureMode(&mode) == 0;
    Module module = nullptr;
    const int error = hip.hipModuleLoadData(&module, image);
    if (exchanged) hip.hipThreadExchangeStreamCaptureMode(&mode);
    check("hipModuleLoadData", error);
    return module;
  }

  // AMD kernels declare their LDS statically: there is no attribute to set.
  Function function(Module module, const char* name, std::uint32_t) override {
    Function function = nullptr;
    check("hipModuleGetFunction", hip.hipModuleGetFunction(&function, module, name), name);
    return function;
  }

  void launch(Function function, const LaunchShape& shape, void* stream,
              const void* arguments) override {
    void* parameters[] = {const_cast<void*>(arguments)};
    check("hipModuleLaunchKernel",
          hip.hipModuleLaunchKernel(function, shape.grid_x, 1, 1, shape.threads, 1, 1,
                                    shape.dynamic_shared, stream, parameters, nullptr));
  }

 private:
  static std::string text_at(const std::vector<char>& bytes, std::size_t offset, std::size_t size) {
    return {bytes.data() + offset, strnlen(bytes.data() + offset, size)};
  }

  void check(const char* call, int error, const char* argument = nullptr) const {
    if (error != 0) fail(call, error, argument);
  }
  [[noreturn]] void fail(const char* call, int error, const char* argument) const {
    hip.hipGetLastError();  // clears the error, which the caller's checks would report
    const char* message = hip.hipGetErrorString(error);
    throw Refusal(ROCFLASH_DEVICE_ERROR, text("hip: ", call_text(call, argument), ": error ", error,
                                              ", ", message ? message : "unknown"));
  }

  HipFunctions hip;
};

}  // namespace

std::unique_ptr<Driver> make_hip_driver(const Library& library, std::string& reason) {
  HipFunctions t{};
  Symbols found(library);
#define ROCFLASH_HIP_LAUNCH(need, name, ...) found.need(t.name, symbols::name::symbol);
#include "gpu/driver/symbols.inc"
  if (!t.hipGetDevicePropertiesR0600)
    found.required(t.hipGetDeviceProperties, symbols::hipGetDeviceProperties::symbol);
  if (!found.missing().empty()) {
    reason = "it lacks " + found.missing();
    return nullptr;
  }
  return std::make_unique<HipDriver>(t);
}

}  // namespace rocflash::gpu
