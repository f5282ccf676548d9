// The HIP driver. Declared here is the part of its C ABI that a launch needs, which has been the
// same from ROCm 5 on; only the properties have two layouts.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.hpp"
#include "gpu/driver/driver.hpp"

namespace rocflash::gpu {
namespace {

constexpr int capture_relaxed = 2;

// Where hipDeviceProp_t has what we read.
struct Layout {
  std::size_t arch, units;
};
constexpr Layout rocm6{1160, 388}, rocm5{396, 336};
constexpr std::size_t arch_size = 256, name_size = 256;
constexpr std::size_t properties_size = 8192;  // larger than any version's

struct Table {
  const char* (*hipGetErrorString)(int);
  int (*hipGetLastError)();
  int (*hipGetDeviceCount)(int*);
  int (*hipGetDevicePropertiesR0600)(void*, int);
  int (*hipGetDeviceProperties)(void*, int);
  int (*hipGetDevice)(int*);
  int (*hipSetDevice)(int);
  int (*hipModuleLoadData)(void**, const void*);
  int (*hipModuleGetFunction)(void**, void*, const char*);
  int (*hipModuleLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, void*, void**, void**);
  int (*hipThreadExchangeStreamCaptureMode)(int*);
};

class HipDriver final : public Driver {
 public:
  explicit HipDriver(const Table& table) : hip(table) {}

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
      for (const Layout& layout : {rocm6, rocm5}) {
        DeviceFacts f{text_at(properties, 0, name_size),
                      text_at(properties, layout.arch, arch_size), 0, 0};
        if (!f.arch.starts_with("gfx")) continue;
        std::memcpy(&f.units, properties.data() + layout.units, sizeof f.units);
        return f;
      }
    }
    throw Refusal(ROCFLASH_DEVICE_ERROR,
                  text("hip: the properties of device ", device, " name no architecture"));
  }

  Entry enter(int device) override {
    Entry entry;
    check("hipGetDevice", hip.hipGetDevice(&entry.device));
    entry.context = static_cast<std::uint64_t>(device);
    entry.changed = entry.device != device;
    if (entry.changed) check("hipSetDevice", hip.hipSetDevice(device));
    return entry;
  }
  void leave(const Entry& entry) noexcept override {
    if (entry.changed) hip.hipSetDevice(entry.device);
  }

  // Loading allocates, which a capture in this thread would forbid; it has no part in the capture.
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

  // AMD kernels declare their LDS, so nothing has to be set for it.
  Function function(Module module, const char* name, std::uint32_t) override {
    Function function = nullptr;
    check("hipModuleGetFunction", hip.hipModuleGetFunction(&function, module, name), name);
    return function;
  }

  void launch(Function function, const LaunchShape& shape, void* stream,
              const void* arguments) override {
    void* parameters[] = {const_cast<void*>(arguments)};
    check("hipModuleLaunchKernel",
          hip.hipModuleLaunchKernel(function, shape.groups, 1, 1, shape.threads, 1, 1,
                                    shape.dynamic_shared, stream, parameters, nullptr));
  }

 private:
  static std::string text_at(const std::vector<char>& bytes, std::size_t offset, std::size_t size) {
    return {bytes.data() + offset, strnlen(bytes.data() + offset, size)};
  }

  void check(const char* call, int error, const char* of = nullptr) const {
    if (error != 0) fail(call, error, of);
  }
  [[noreturn]] void fail(const char* call, int error, const char* of) const {
    hip.hipGetLastError();  // the caller's own checks must not find our error later
    const char* words = hip.hipGetErrorString(error);
    throw Refusal(ROCFLASH_DEVICE_ERROR, text("hip: ", call_text(call, of), ": error ", error, ", ",
                                              words ? words : "unknown"));
  }

  Table hip;
};

}  // namespace

std::unique_ptr<Driver> make_hip_driver(const Library& library, std::string& reason) {
  Table t{};
  Symbols symbols(library);
  symbols.need(t.hipGetErrorString, "hipGetErrorString");
  symbols.need(t.hipGetLastError, "hipGetLastError");
  symbols.need(t.hipGetDeviceCount, "hipGetDeviceCount");
  symbols.optional(t.hipGetDevicePropertiesR0600, "hipGetDevicePropertiesR0600");
  t.hipGetDevicePropertiesR0600
      ? symbols.optional(t.hipGetDeviceProperties, "hipGetDeviceProperties")
      : symbols.need(t.hipGetDeviceProperties, "hipGetDeviceProperties");
  symbols.need(t.hipGetDevice, "hipGetDevice");
  symbols.need(t.hipSetDevice, "hipSetDevice");
  symbols.need(t.hipModuleLoadData, "hipModuleLoadData");
  symbols.need(t.hipModuleGetFunction, "hipModuleGetFunction");
  symbols.need(t.hipModuleLaunchKernel, "hipModuleLaunchKernel");
  symbols.optional(t.hipThreadExchangeStreamCaptureMode, "hipThreadExchangeStreamCaptureMode");
  if (!symbols.missing().empty()) {
    reason = "it lacks " + symbols.missing();
    return nullptr;
  }
  return std::make_unique<HipDriver>(t);
}

}  // namespace rocflash::gpu
