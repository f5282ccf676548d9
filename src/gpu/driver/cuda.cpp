// The CUDA driver, through libcuda alone: the runtime library is a framework's own business.
#include <atomic>
#include <memory>

#include "core/error.hpp"
#include "gpu/driver/driver.hpp"

namespace rocflash::gpu {
namespace {

constexpr int capture_relaxed = 2;
constexpr int attribute_units = 16, attribute_major = 75, attribute_minor = 76,
              attribute_group_shared = 97;  // that a kernel may ask for
constexpr int jit_error_log = 5, jit_error_log_size = 6;
constexpr int function_dynamic_shared = 8;
constexpr std::uint32_t shared_without_asking = 48 << 10;

// Numbers of cuTensorMapEncodeTiled.
constexpr int tensor_f16 = 6, tensor_bf16 = 9;
constexpr int no_interleave = 0, swizzle_64_bytes = 2, swizzle_128_bytes = 3, promote_128_bytes = 2,
              outside_is_zero = 0;

// Of cuLaunchKernelEx. Launches that start early can be captured from version 12.3 on.
constexpr int attribute_cluster = 4, attribute_early = 6;
constexpr int captures_early = 12030;
struct LaunchAttribute {
  int which, room_of_pointers;
  union {
    std::uint32_t cluster[3];
    int early;
    char room[64];
  };
};
static_assert(sizeof(LaunchAttribute) == 72);
struct LaunchConfig {
  unsigned groups[3], threads[3], dynamic_shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};

using Context = void*;

struct Table {
  int (*cuInit)(unsigned);
  int (*cuGetErrorName)(int, const char**);
  int (*cuGetErrorString)(int, const char**);
  int (*cuDeviceGetCount)(int*);
  int (*cuDeviceGet)(int*, int);
  int (*cuDeviceGetName)(char*, int, int);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuDevicePrimaryCtxRetain)(Context*, int);
  int (*cuCtxGetCurrent)(Context*);
  int (*cuCtxGetDevice)(int*);
  int (*cuCtxPushCurrent)(Context);
  int (*cuCtxPopCurrent)(Context*);
  int (*cuCtxGetId)(Context, unsigned long long*);
  int (*cuModuleLoadDataEx)(void**, const void*, unsigned, int*, void**);
  int (*cuModuleGetFunction)(void**, void*, const char*);
  int (*cuFuncSetAttribute)(void*, int, int);
  int (*cuLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        void*, void**, void**);
  int (*cuLaunchKernelEx)(const LaunchConfig*, void*, void**, void**);
  int (*cuDriverGetVersion)(int*);
  int (*cuThreadExchangeStreamCaptureMode)(int*);
  int (*cuTensorMapEncodeTiled)(kernel::TensorMap*, int, unsigned, const void*,
                                const std::uint64_t*, const std::uint64_t*, const std::uint32_t*,
                                const std::uint32_t*, int, int, int, int);
};

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(const Table& table) : cu(table) {
    int version = 0;
    starts_early_ =
        cu.cuDriverGetVersion && cu.cuDriverGetVersion(&version) == 0 && version >= captures_early;
  }

  int device_count() override {
    check("cuInit", cu.cuInit(0));
    int count = 0;
    check("cuDeviceGetCount", cu.cuDeviceGetCount(&count));
    devices_ = std::make_unique<OneDevice[]>(static_cast<std::size_t>(count));
    for (int n = 0; n < count; ++n)
      check("cuDeviceGet", cu.cuDeviceGet(&devices_[static_cast<std::size_t>(n)].handle, n));
    return count;
  }

  DeviceFacts facts(int device) override {
    const int handle = handle_of(device);
    char name[256] = "";
    check("cuDeviceGetName", cu.cuDeviceGetName(name, sizeof name, handle));
    return {name,
            text("sm_", attribute(handle, attribute_major), attribute(handle, attribute_minor)),
            attribute(handle, attribute_units), attribute(handle, attribute_group_shared)};
  }

  // The caller's context if it is one of this device, since its stream belongs to that; else the
  // device's primary one, where frameworks live.
  Entry enter(int device) override {
    Entry entry;
    Context context = nullptr;
    check("cuCtxGetCurrent", cu.cuCtxGetCurrent(&context));
    int current = -1;
    if (context) check("cuCtxGetDevice", cu.cuCtxGetDevice(&current));
    if (!context || current != handle_of(device)) {
      context = primary(device);
      check("cuCtxPushCurrent", cu.cuCtxPushCurrent(context));
      entry.changed = true;
    }
    unsigned long long id = reinterpret_cast<std::uintptr_t>(context);
    if (cu.cuCtxGetId) cu.cuCtxGetId(context, &id);
    entry.context = id;
    return entry;
  }
  void leave(const Entry& entry) noexcept override {
    Context popped = nullptr;
    if (entry.changed) cu.cuCtxPopCurrent(&popped);
  }

  bool serves_hopper() const override { return cu.cuTensorMapEncodeTiled && cu.cuLaunchKernelEx; }
  void map(const TensorBox& b) override {
    const std::uint32_t box[TensorBox::dimensions] = {b.columns, b.rows, 1, 1};
    const std::uint32_t steps[TensorBox::dimensions] = {1, 1, 1, 1};
    const int swizzle = b.columns * size_of(b.dtype) == 128 ? swizzle_128_bytes : swizzle_64_bytes;
    check("cuTensorMapEncodeTiled",
          cu.cuTensorMapEncodeTiled(b.map, b.dtype == DType::bf16 ? tensor_bf16 : tensor_f16,
                                    TensorBox::dimensions, b.data, b.sizes, b.strides, box, steps,
                                    no_interleave, swizzle, promote_128_bytes, outside_is_zero));
  }

  // Loading allocates, which a capture in this thread would forbid; it has no part in the capture.
  Module load(const std::byte* image) override {
    int mode = capture_relaxed;
    const bool exchanged =
        cu.cuThreadExchangeStreamCaptureMode && cu.cuThreadExchangeStreamCaptureMode(&mode) == 0;
    char log[512] = "";
    int options[] = {jit_error_log, jit_error_log_size};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    Module module = nullptr;
    const int error = cu.cuModuleLoadDataEx(&module, image, 2, options, values);
    if (exchanged) cu.cuThreadExchangeStreamCaptureMode(&mode);
    check("cuModuleLoadDataEx", error, nullptr, log);
    return module;
  }

  Function function(Module module, const char* name, std::uint32_t dynamic_shared) override {
    Function function = nullptr;
    check("cuModuleGetFunction", cu.cuModuleGetFunction(&function, module, name), name);
    if (dynamic_shared > shared_without_asking)
      check("cuFuncSetAttribute",
            cu.cuFuncSetAttribute(function, function_dynamic_shared,
                                  static_cast<int>(dynamic_shared)),
            name);
    return function;
  }

  void launch(Function function, const LaunchShape& shape, void* stream,
              const void* arguments) override {
    void* parameters[] = {const_cast<void*>(arguments)};
    const bool early = shape.early && starts_early_;
    if (early || shape.cluster > 1 || shape.groups_y > 1 || shape.groups_z > 1) {
      LaunchAttribute attributes[2] = {};
      unsigned count = 0;
      if (shape.cluster > 1) {
        attributes[count].which = attribute_cluster;
        attributes[count].cluster[0] = shape.cluster;
        attributes[count].cluster[1] = attributes[count].cluster[2] = 1;
        ++count;
      }
      if (early) {
        attributes[count].which = attribute_early;
        attributes[count++].early = 1;
      }
      const LaunchConfig config{{shape.groups, shape.groups_y, shape.groups_z},
                                {shape.threads, 1, 1},
                                shape.dynamic_shared,
                                stream,
                                attributes,
                                count};
      check("cuLaunchKernelEx", cu.cuLaunchKernelEx(&config, function, parameters, nullptr));
      return;
    }
    check("cuLaunchKernel", cu.cuLaunchKernel(function, shape.groups, 1, 1, shape.threads, 1, 1,
                                              shape.dynamic_shared, stream, parameters, nullptr));
  }

 private:
  struct OneDevice {
    int handle = 0;
    std::atomic<Context> primary{nullptr};
  };

  int handle_of(int device) const { return devices_[static_cast<std::size_t>(device)].handle; }
  int attribute(int handle, int which) const {
    int value = 0;
    check("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(&value, which, handle));
    return value;
  }

  // Retained and never given back: modules live in it until the process ends. Threads that come
  // together retain it once each, which does no harm.
  Context primary(int device) {
    std::atomic<Context>& known = devices_[static_cast<std::size_t>(device)].primary;
    Context context = known.load(std::memory_order_acquire);
    if (!context) {
      check("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(&context, handle_of(device)));
      known.store(context, std::memory_order_release);
    }
    return context;
  }

  void check(const char* call, int error, const char* of = nullptr, const char* log = "") const {
    if (error != 0) fail(call, error, of, log);
  }
  [[noreturn]] void fail(const char* call, int error, const char* of, const char* log) const {
    const char *name = nullptr, *words = nullptr;
    cu.cuGetErrorName(error, &name);
    cu.cuGetErrorString(error, &words);
    throw Refusal(ROCFLASH_DEVICE_ERROR, text("cuda: ", call_text(call, of), ": error ", error,
                                              ", ", name ? name : "unknown", ": ",
                                              words ? words : "unknown", *log ? "; " : "", log));
  }

  Table cu;
  bool starts_early_ = false;
  std::unique_ptr<OneDevice[]> devices_;
};

}  // namespace

std::unique_ptr<Driver> make_cuda_driver(const Library& library, std::string& reason) {
  Table t{};
  Symbols symbols(library);
  symbols.need(t.cuInit, "cuInit");
  symbols.need(t.cuGetErrorName, "cuGetErrorName");
  symbols.need(t.cuGetErrorString, "cuGetErrorString");
  symbols.need(t.cuDeviceGetCount, "cuDeviceGetCount");
  symbols.need(t.cuDeviceGet, "cuDeviceGet");
  symbols.need(t.cuDeviceGetName, "cuDeviceGetName");
  symbols.need(t.cuDeviceGetAttribute, "cuDeviceGetAttribute");
  symbols.need(t.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  symbols.need(t.cuCtxGetCurrent, "cuCtxGetCurrent");
  symbols.need(t.cuCtxGetDevice, "cuCtxGetDevice");
  symbols.need(t.cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  symbols.need(t.cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  symbols.optional(t.cuCtxGetId, "cuCtxGetId");
  symbols.need(t.cuModuleLoadDataEx, "cuModuleLoadDataEx");
  symbols.need(t.cuModuleGetFunction, "cuModuleGetFunction");
  symbols.need(t.cuFuncSetAttribute, "cuFuncSetAttribute");
  symbols.need(t.cuLaunchKernel, "cuLaunchKernel");
  symbols.optional(t.cuLaunchKernelEx, "cuLaunchKernelEx");
  symbols.optional(t.cuDriverGetVersion, "cuDriverGetVersion");
  symbols.optional(t.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  symbols.optional(t.cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled");
  if (!symbols.missing().empty()) {
    reason = "it lacks " + symbols.missing();
    return nullptr;
  }
  return std::make_unique<CudaDriver>(t);
}

}  // namespace rocflash::gpu
