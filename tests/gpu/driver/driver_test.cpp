// The driver bindings on fake libraries: the sequence of driver calls, and error reporting.
#include <dlfcn.h>
#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "core/error.hpp"
#include "gpu/driver/driver.hpp"
#include "gpu/loader.hpp"
#include "table/workgroups.hpp"

namespace rocflash::gpu {

// The catalog of this test: one AMD and one NVIDIA target with opaque modules. As in the real
// catalog, all AMD kernels share a module and each NVIDIA kernel has its own.
namespace {
const Target both[] = {{"gfx942", kernel::Family::cdna3}, {"sm_80", kernel::Family::sm80}};
const std::byte object[16] = {};
}  // namespace
std::span<const std::byte> module_for(const Target& target, std::string_view kernel) {
  if (kernel == "forward_f16_192_specialized") return {};
  const std::size_t which = &target == &both[1] && kernel == "forward_f16_96_specialized" ? 1 : 0;
  return std::span(object).subspan(8 * which, 8);
}

namespace {

// A fake driver library, its binding and its log.
struct Fake {
  Fake(const char* file, decltype(make_hip_driver)* make) {
    setenv("FAKE_LIBRARY", file, 1);
    library = open_library("FAKE_LIBRARY", {});
    unsetenv("FAKE_LIBRARY");
    EXPECT_TRUE(library.handle) << library.reason;
    driver = make(library, reason);
    if (driver) driver->device_count();  // the first call of the backend too
    clear();
  }
  template <class Function>
  Function* symbol(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library.handle, name));
  }
  std::string log() const { return symbol<const char*()>("fake_log")(); }
  void clear() const { symbol<void()>("fake_clear")(); }

  Library library;
  std::string reason;
  std::unique_ptr<Driver> driver;
};

std::string device_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.status(), ROCFLASH_DEVICE_ERROR);
    return refusal.message();
  }
  return "nothing was thrown";
}

struct Variable {
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  const char* name_;
};

// Kernel numbers.
const int first = kernel::kernel_number(
              kernel::forward_spec(DType::f16, 64, kernel::Variant::specialized)),
          second = first + 1, third = first + 2, missing = first + 3,
          weights = kernel::kernel_number(kernel::weights_spec(DType::f16));

// Loaders are static in all tests: they never unload, as the library's own.
void run(Fake& f, Loader& loader, int device, void* stream, const Target& target,
         int number = first) {
  const DeviceGuard guard(*f.driver, device);
  const Function function = loader.kernel(*f.driver, guard.context(), target, number);
  const int shared =
      kernel::workgroup_shape(target.family, kernel::kernel_spec(number)).dynamic_shared;
  f.driver->launch(function, {12, 256, static_cast<std::uint32_t>(shared)}, stream, object);
}

TEST(HipDriver, ReadsBothLayoutsOfDeviceProperties) {
  for (const char* file : {FAKE_HIP6_LIBRARY, FAKE_HIP5_LIBRARY}) {
    const Fake f(file, make_hip_driver);
    ASSERT_TRUE(f.driver) << f.reason;
    EXPECT_EQ(f.driver->device_count(), 2);
    EXPECT_EQ(f.driver->facts(0).name, "Fake MI300X");
    EXPECT_EQ(f.driver->facts(0).arch, "gfx942:sramecc+:xnack-");
    EXPECT_EQ(f.driver->facts(0).units, 304);
    EXPECT_EQ(f.driver->facts(1).arch, "gfx803");
    EXPECT_EQ(f.driver->facts(1).units, 60);
  }
}

TEST(HipDriver, LibraryWithoutARequiredFunctionIsNotUsed) {
  const Fake f(FAKE_HIP_INCOMPLETE_LIBRARY, make_hip_driver);
  EXPECT_FALSE(f.driver);
  EXPECT_EQ(f.reason, "it lacks hipModuleLaunchKernel");
}

TEST(HipDriver, LoadsOncePerDeviceAndRestoresTheCurrentDevice) {
  Fake f(FAKE_HIP6_LIBRARY, make_hip_driver);
  static Loader loader;
  auto* stream = reinterpret_cast<void*>(42);
  run(f, loader, 0, stream, both[0]);
  EXPECT_EQ(f.log(),
            "capture mode 2\nload on 0\ncapture mode 0\nfunction forward_f16_64_specialized\n"
            "launch 12 x 256 on device 0 stream 42\n");
  f.clear();
  run(f, loader, 0, nullptr, both[0]);
  EXPECT_EQ(f.log(), "launch 12 x 256 on device 0 stream 0\n");
  f.clear();
  run(f, loader, 1, stream, both[0]);
  EXPECT_EQ(
      f.log(),
      "device 1\ncapture mode 2\nload on 1\ncapture mode 0\nfunction forward_f16_64_specialized\n"
      "launch 12 x 256 on device 1 stream 42\ndevice 0\n");
}

TEST(HipDriver, ErrorsCarryTheDriversMessageAndAreCleared) {
  Fake f(FAKE_HIP6_LIBRARY, make_hip_driver);
  static Loader loader;
  {
    const Variable error("FAKE_LOAD_ERROR", "209");
    EXPECT_EQ(device_error([&] { run(f, loader, 1, nullptr, both[0]); }),
              "hip: hipModuleLoadData: error 209, fake trouble");
  }
  EXPECT_EQ(f.log(), "device 1\ncapture mode 2\nload on 1\ncapture mode 0\nlast error\ndevice 0\n");
  f.clear();
  {
    const Variable error("FAKE_LAUNCH_ERROR", "719");
    EXPECT_EQ(device_error([&] { run(f, loader, 0, nullptr, both[0]); }),
              "hip: hipModuleLaunchKernel: error 719, fake trouble");
  }
  run(f, loader, 1, nullptr, both[0]);  // a failed load is retried
  const Variable error("FAKE_COUNT_ERROR", "100");
  EXPECT_EQ(device_error([&] { f.driver->device_count(); }),
            "hip: hipGetDeviceCount: error 100, no device");
}

int count(const std::string& log, const std::string& what) {
  int found = 0;
  for (std::size_t at = 0; (at = log.find(what, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST(Loader, ConcurrentThreadsLoadOnce) {
  Fake f(FAKE_HIP6_LIBRARY, make_hip_driver);
  static Loader loader;
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < 16; ++n)
      threads.emplace_back([&, n] { run(f, loader, n % 2, nullptr, both[0]); });
  }
  const std::string log = f.log();
  EXPECT_EQ(count(log, "load on 0"), 1);
  EXPECT_EQ(count(log, "load on 1"), 1);
  EXPECT_EQ(count(log, "function"), 2);
  EXPECT_EQ(count(log, "launch"), 16);
}

TEST(Loader, LoadsEachModuleOnce) {
  Fake hip(FAKE_HIP6_LIBRARY, make_hip_driver), cuda(FAKE_CUDA_LIBRARY, make_cuda_driver);
  static Loader loader;
  for (const int kernel : {first, second, third, second}) {
    run(hip, loader, 0, nullptr, both[0], kernel);
    run(cuda, loader, 0, nullptr, both[1], kernel);
  }
  EXPECT_EQ(count(hip.log(), "load on 0"), 1) << hip.log();
  EXPECT_EQ(count(cuda.log(), "load in 1000"), 2) << cuda.log();
  EXPECT_EQ(count(hip.log(), "function"), 3);
  EXPECT_EQ(count(cuda.log(), "launch"), 4);
}

TEST(Loader, MissingKernelIsAnInternalError) {
  Fake f(FAKE_CUDA_LIBRARY, make_cuda_driver);
  static Loader loader;
  try {
    run(f, loader, 0, nullptr, both[1], missing);
    ADD_FAILURE() << "no error";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.status(), ROCFLASH_INTERNAL);
    EXPECT_EQ(refusal.message(), "the kernel catalog of sm_80 lacks forward_f16_192_specialized");
  }
}

TEST(CudaDriver, ReportsDevices) {
  const Fake f(FAKE_CUDA_LIBRARY, make_cuda_driver);
  ASSERT_TRUE(f.driver) << f.reason;
  EXPECT_EQ(f.driver->device_count(), 2);
  EXPECT_EQ(f.driver->facts(0).name, "Fake H200");
  EXPECT_EQ(f.driver->facts(0).arch, "sm_90");
  EXPECT_EQ(f.driver->facts(0).units, 132);
}

TEST(CudaDriver, EncodesTensorMaps) {
  const Fake f(FAKE_CUDA_LIBRARY, make_cuda_driver);
  ASSERT_TRUE(f.driver->supports_sm90());
  kernel::TensorMap map;
  TensorMapDesc desc{
      reinterpret_cast<const void*>(64), DType::bf16, {96, 500, 8, 2}, {1536, 192, 768000}};
  desc.box_columns = 32;
  desc.box_rows = 176;
  desc.map = &map;
  f.driver->encode_tensor_map(desc);
  EXPECT_EQ(f.log(), "map 9 rank 4 at 64: 96 500 8 2 by 1536 192 768000 box 32 176 swizzle 2\n");
  EXPECT_EQ(map.opaque[0], 7u);
  f.clear();
  desc.dtype = DType::f16;
  desc.box_columns = 64;
  f.driver->encode_tensor_map(desc);
  EXPECT_EQ(f.log(), "map 6 rank 4 at 64: 96 500 8 2 by 1536 192 768000 box 64 176 swizzle 3\n");
  const Variable error("FAKE_MAP_ERROR", "1");
  EXPECT_NE(device_error([&] { f.driver->encode_tensor_map(desc); }).find("cuTensorMapEncodeTiled"),
            std::string::npos);
}

TEST(CudaDriver, LaunchesClustersAndPdl) {
  Fake f(FAKE_CUDA_LIBRARY, make_cuda_driver);
  const auto set_context = f.symbol<void(std::uintptr_t)>("fake_set_context");
  set_context(77);
  LaunchShape shape{8, 128, 1000};
  void* stream = reinterpret_cast<void*>(42);
  const auto launched = [&] {
    f.clear();
    f.driver->launch(nullptr, shape, stream, nullptr);
    return f.log();
  };
  EXPECT_EQ(launched(), "launch 8 x 128 shared 1000 in 77 stream 42\n");
  shape.grid_y = 3;
  shape.grid_z = 5;
  EXPECT_EQ(launched(), "launch 8 3 5 x 128 shared 1000 in 77 stream 42\n");
  shape.cluster = 4;
  EXPECT_EQ(launched(), "launch 8 3 5 x 128 shared 1000 in 77 stream 42\nwith 4 = 4 1 1\n");
  shape.pdl = true;
  EXPECT_EQ(launched(),
            "launch 8 3 5 x 128 shared 1000 in 77 stream 42\nwith 4 = 4 1 1\nwith 6 = 1 0 0\n");
  set_context(0);
}

TEST(CudaDriver, UsesTheCallersOrThePrimaryContext) {
  Fake f(FAKE_CUDA_LIBRARY, make_cuda_driver);
  static Loader loader;
  const auto set_context = f.symbol<void(std::uintptr_t)>("fake_set_context");
  auto* stream = reinterpret_cast<void*>(42);

  set_context(0);  // a thread without a context
  run(f, loader, 1, stream, both[1]);
  EXPECT_EQ(f.log(),
            "retain 1\npush 1001\ncapture mode 2\nload in 1001\ncapture mode 0\nfunction "
            "forward_f16_64_specialized\n"
            "attribute 8 = 50176\nlaunch 12 x 256 shared 50176 in 1001 stream 42\npop\n");
  f.clear();
  set_context(1001);  // a framework's thread
  run(f, loader, 1, stream, both[1]);
  EXPECT_EQ(f.log(), "launch 12 x 256 shared 50176 in 1001 stream 42\n");
  f.clear();
  set_context(77);                              // a context that is not primary has its own modules
  run(f, loader, 0, stream, both[1], weights);  // within the default limit of shared memory
  EXPECT_EQ(f.log(),
            "capture mode 2\nload in 77\ncapture mode 0\nfunction weights_f16\n"
            "launch 12 x 256 shared 0 in 77 stream 42\n");
  f.clear();
  run(f, loader, 1, stream, both[1]);  // not the current device
  EXPECT_EQ(f.log(), "push 1001\nlaunch 12 x 256 shared 50176 in 1001 stream 42\npop\n");
  set_context(0);
}

TEST(CudaDriver, ErrorsCarryTheDriversMessageAndTheJitLog) {
  Fake f(FAKE_CUDA_LIBRARY, make_cuda_driver);
  static Loader loader;
  {
    const Variable error("FAKE_LOAD_ERROR", "218");
    EXPECT_EQ(device_error([&] { run(f, loader, 0, nullptr, both[1]); }),
              "cuda: cuModuleLoadDataEx: error 218, CUDA_ERROR_FAKE: fake trouble; line 3: no such "
              "instruction");
  }
  const Variable error("FAKE_LAUNCH_ERROR", "701");
  EXPECT_EQ(device_error([&] { run(f, loader, 0, nullptr, both[1]); }),
            "cuda: cuLaunchKernel: error 701, CUDA_ERROR_FAKE: fake trouble");
  EXPECT_EQ(f.log().substr(f.log().size() - 4), "pop\n");
}

}  // namespace
}  // namespace rocflash::gpu
