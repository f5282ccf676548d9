// The CUDA driver API through libcuda alone; the CUDA runtime is not needed.
#include <atomic>
#include <memory>

#include "core/error.hpp"
#include "gpu/driver/driver.hpp"
#include "gpu/driver/symbols.hpp"

namespace rocflash::gpu {
namespace {

constexpr int capture_relaxed = 2;
constexpr int attribute_units = 16, attribute_major = 75, attribute_minor = 76,
              attribute_max_shared_optin = 97;
constexpr int jit_error_log = 5, jit_error_log_size = 6;
constexpr int function_dynamic_shared = 8;
constexpr std::uint32_t default_shared_limit = 48 << 10;

// Enumerators of cuTensorMapEncodeTiled.
constexpr int tensor_f16 = 6, tensor_bf16 = 9;
int tensor_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return tensor_f16;
    case DType::bf16:
      return tensor_bf16;
    case DType::f32:
    case DType::f64:
    case DType::i32:
    case DType::boolean:
    case DType::e4m3fn:
    case DType::e4m3fnuz:
    case DType::e5m2:
    case DType::e5m2fnuz:
    case DType::i8:
      break;
  }
  throw Refusal(ROCFLASH_INTERNAL, text("tensor maps of ", name_of(dtype), " are not planned"));
}
constexpr int no_interleave = 0, swizzle_64_bytes = 2, swizzle_128_bytes = 3, promote_128_bytes = 2,
              oob_fill_zero = 0;

// Attributes of cuLaunchKernelEx. PDL launches can be captured in graphs from CUDA 12.3 on.
constexpr int attribute_cluster = 4, attribute_pdl = 6;
constexpr int pdl_capture_version = 12030;
struct LaunchAttribute {
  int id, padding;
  union {
    std::uint32_t cluster[3];
    int pdl;
    char reserved[64];
  };
};
static_assert(sizeof(LaunchAttribute) == 72);
struct LaunchConfig {
  unsigned grid[3], threads[3], dynamic_shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};

using Context = void*;

struct CudaFunctions {
#define ROCFLASH_CUDA_LAUNCH(need, name, ...) symbols::name::Type* name;
#include "gpu/driver/symbols.inc"
};

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(const CudaFunctions& functions) : cu(functions) {
    int version = 0;
    supports_pdl_ = cu.cuDriverGetVersion && cu.cuDriverGetVersion(&version) == 0 &&
                    version >= pdl_capture_version;
  }

  int device_count() override {
    check("cuInit", cu.cuInit(0));
    int count = 0;
    check("cuDeviceGetCount", cu.cuDeviceGetCount(&count));
    devices_ = std::make_unique<DeviceHandle[]>(static_cast<std::size_t>(count));
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
            attribute(handle, attribute_units), attribute(handle, attribute_max_shared_optin)};
  }

  // The caller's context if it belongs to this device, because its stream does too. Otherwise the
  // device's primary context, which frameworks use.
  ContextState enter(int device) override {
    ContextState state;
    Context context = nullptr;
    check("cuCtxGetCurrent", cu.cuCtxGetCurrent(&context));
    int current = -1;
    if (context) check("cuCtxGetDevice", cu.cuCtxGetDevice(&current));
    if (!context || current != handle_of(device)) {
      context = primary(device);
      check("cuCtxPushCurrent", cu.cuCtxPushCurrent(context));
      state.changed = true;
    }
    unsigned long long id = reinterpret_cast<std::uintptr_t>(context);
    if (cu.cuCtxGetId) cu.cuCtxGetId(context, &id);
    state.context = id;
    return state;
  }
  void leave(const ContextState& state) noexcept override {
    Context popped = nullptr;
    if (state.changed) cu.cuCtxPopCurrent(&popped);
  }

  bool supports_sm90() const override { return cu.cuTensorMapEncodeTiled && cu.cuLaunchKernelEx; }
  void encode_tensor_map(const TensorMapDesc& t) override {
    const std::uint32_t box[TensorMapDesc::dimensions] = {t.box_columns, t.box_rows, 1, 1};
    const std::uint32_t element_strides[TensorMapDesc::dimensions] = {1, 1, 1, 1};
    const int swizzle =
        t.box_columns * size_of(t.dtype) == 128 ? swizzle_128_bytes : swizzle_64_bytes;
    check("cuTensorMapEncodeTiled",
          cu.cuTensorMapEncodeTiled(t.map, tensor_type(t.dtype), TensorMapDesc::dimensions, t.data,
                                    t.sizes, t.strides, box, element_strides, no_interleave,
                                    swizzle, promote_128_bytes, oob_fill_zero));
  }

  // Loading allocates, which stream capture in this thread would forbid; loads are not captured.
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
    if (dynamic_shared > default_shared_limit)
      check("cuFuncSetAttribute",
            cu.cuFuncSetAttribute(function, function_dynamic_shared,
                                  static_cast<int>(dynamic_shared)),
            name);
    return function;
  }

  void launch(Function function, const LaunchShape& shape, void* stream,
              const void* arguments) override {
    void* parameters[] = {const_cast<void*>(arguments)};
    const bool pdl = shape.pdl && supports_pdl_;
    if (pdl || shape.cluster > 1 || shape.grid_y > 1 || shape.grid_z > 1) {
      LaunchAttribute attributes[2] = {};
      unsigned count = 0;
      if (shape.cluster > 1) {
        attributes[count].id = attribute_cluster;
        attributes[count].cluster[0] = shape.cluster;
        attributes[count].cluster[1] = attributes[count].cluster[2] = 1;
        ++count;
      }
      if (pdl) {
        attributes[count].id = attribute_pdl;
        attributes[count++].pdl = 1;
      }
      const LaunchConfig config{{shape.grid_x, shape.grid_y, shape.grid_z},
                                {shape.threads, 1, 1},
                                shape.dynamic_shared,
                                stream,
                                attributes,
                                count};
      check("cuLaunchKernelEx", cu.cuLaunchKernelEx(&config, function, parameters, nullptr));
      return;
    }
    check("cuLaunchKernel", cu.cuLaunchKernel(function, shape.grid_x, 1, 1, shape.threads, 1, 1,
                                              shape.dynamic_shared, stream, parameters, nullptr));
  }

 private:
  struct DeviceHandle {
    int handle = 0;
    std::atomic<Context> primary{nullptr};
  };

  int handle_of(int device) const { return devices_[static_cast<std::size_t>(device)].handle; }
  int attribute(int handle, int id) const {
    int value = 0;
    check("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(&value, id, handle));
    return value;
  }

  // Retained and never released: modules live in it until the process exits. Concurrent first calls
  // retain it once each, which is harmless.
  Context primary(int device) {
    std::atomic<Context>& cached = devices_[static_cast<std::size_t>(device)].primary;
    Context context = cached.load(std::memory_order_acquire);
    if (!context) {
      check("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(&context, handle_of(device)));
      cached.store(context, std::memory_order_release);
    }
    return context;
  }

  void check(const char* call, int error, const char* argument = nullptr,
             const char* log = "") const {
    if (error != 0) fail(call, error, argument, log);
  }
  [[noreturn]] void fail(const char* call, int error, const char* argument, const char* log) const {
    const char *name = nullptr, *message = nullptr;
    cu.cuGetErrorName(error, &name);
    cu.cuGetErrorString(error, &message);
    throw Refusal(
        ROCFLASH_DEVICE_ERROR,
        text("cuda: ", call_text(call, argument), ": error ", error, ", ", name ? name : "unknown",
             ": ", message ? message : "unknown", *log ? "; " : "", log));
  }

  CudaFunctions cu;
  bool supports_pdl_ = false;
  std::unique_ptr<DeviceHandle[]> devices_;
};

}  // namespace

std::unique_ptr<Driver> make_cuda_driver(const Library& library, std::string& reason) {
  CudaFunctions t{};
  Symbols found(library);
#define ROCFLASH_CUDA_LAUNCH(need, name, ...) found.need(t.name, symbols::name::symbol);
#include "gpu/driver/symbols.inc"
  if (!found.missing().empty()) {
    reason = "it lacks " + found.missing();
    return nullptr;
  }
  return std::make_unique<CudaDriver>(t);
}

}  // namespace rocflash::gpu
