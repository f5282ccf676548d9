// The stand-in libamdhip64 as a program meets it: opened by name, called through HIP's C ABI.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness.h"
#include "hip/hip_abi.h"

namespace rocflash::sim::test {
namespace {

constexpr const char* kCountersFile = ROCFLASH_SIM_TEST_CACHE "/hip-api-counters.jsonl";

class HipApi : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("ROCFLASH_SIM_ARCH", "gfx1100,gfx942", 1);
    setenv("ROCFLASH_SIM_DEVICES", "2", 1);
    setenv("ROCFLASH_SIM_COUNTERS", kCountersFile, 1);
    std::remove(kCountersFile);
    library_ = dlopen(ROCFLASH_SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }

  template <typename... A>
  hipError_t call(const char* name, A... a) {
    auto* f = reinterpret_cast<hipError_t (*)(A...)>(dlsym(library_, name));
    EXPECT_NE(f, nullptr) << name;
    return f != nullptr ? f(a...) : hipErrorUnknown;
  }
  const char* text(const char* name, hipError_t error) {
    return reinterpret_cast<const char* (*)(hipError_t)>(dlsym(library_, name))(error);
  }
  const char* extension(const char* name) {
    return reinterpret_cast<const char* (*)()>(dlsym(library_, name))();
  }

  hipFunction_t function(const char* target, const char* name) {
    code_ = compile_hip(ROCFLASH_SIM_TEST_SOURCE "/kernels/suite.hip", target,
                        "-O3 -ffp-contract=off -mcode-object-version=5");
    hipModule_t module = nullptr;
    EXPECT_EQ(call("hipModuleLoadData", &module, static_cast<const void*>(code_.data())),
              hipSuccess);
    hipFunction_t f = nullptr;
    EXPECT_EQ(call("hipModuleGetFunction", &f, module, name), hipSuccess);
    return f;
  }

  template <typename T>
  T* device(const std::vector<T>& values) {
    void* p = nullptr;
    EXPECT_EQ(call("hipMalloc", &p, values.size() * sizeof(T)), hipSuccess);
    EXPECT_EQ(call("hipMemcpy", p, static_cast<const void*>(values.data()),
                   values.size() * sizeof(T), hipMemcpyHostToDevice),
              hipSuccess);
    return static_cast<T*>(p);
  }

  hipError_t launch(hipFunction_t f, u32 grid, u32 block, void** params, void** extra) {
    return call("hipModuleLaunchKernel", f, grid, 1u, 1u, block, 1u, 1u, 0u, hipStream_t{}, params,
                extra);
  }

  // A kernel of the suite over 512 elements: two inputs, one output.
  hipError_t launch_on_512(hipFunction_t f, void* a, void* b, void* out) {
    u32 n = 512;
    void* params[] = {&a, &b, &out, &n};
    return launch(f, 2, 256, params, nullptr);
  }

  static void* library_;
  std::vector<u8> code_;
};

void* HipApi::library_ = nullptr;

TEST_F(HipApi, AppendsALineOfCountersForEachLaunch) {
  EXPECT_EQ(call("hipSetDevice", 1), hipSuccess);
  const hipFunction_t f = function("gfx942", "softmax_block");
  std::vector<u32> words(512, 0x3f800000);
  u32* a = device(words);
  u32* out = device(words);
  const auto lines = [] {
    std::ifstream file(kCountersFile);
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  };
  const std::size_t before = lines().size();
  EXPECT_EQ(launch_on_512(f, a, a, out), hipSuccess);
  EXPECT_EQ(launch_on_512(f, a, a, out), hipSuccess);
  const auto after = lines();
  ASSERT_EQ(after.size(), before + 2);
  const auto counters = nlohmann::json::parse(after.back());
  EXPECT_EQ(counters["kernel"], "softmax_block");
  EXPECT_EQ(counters["waves"], 8);
  EXPECT_GT(counters["issue_cycles"]["transcendental"], 0);
  EXPECT_GT(counters["lds_cycles"], 0);
}

// The library's own door: a file that is cut or lies is an error code.
TEST_F(HipApi, RefusesBrokenCodeObjects) {
  EXPECT_EQ(call("hipSetDevice", 1), hipSuccess);
  (void)function("gfx942", "softmax_block");
  hipModule_t module = nullptr;
  for (const std::size_t field : {4, 16, 18, 32, 40, 54, 56, 58, 60}) {
    auto bytes = code_;
    bytes[field] = bytes[field + 1] = 0xff;
    EXPECT_EQ(call("hipModuleLoadData", &module, static_cast<const void*>(bytes.data())),
              hipErrorInvalidImage)
        << field;
    EXPECT_EQ(module, nullptr);
  }
}

TEST_F(HipApi, EnumeratesDevicesInBothLayouts) {
  int count = 0;
  EXPECT_EQ(call("hipGetDeviceCount", &count), hipSuccess);
  EXPECT_EQ(count, 2);
  std::vector<char> p(4096, 'x');
  EXPECT_EQ(call("hipGetDevicePropertiesR0600", static_cast<void*>(p.data()), 0), hipSuccess);
  EXPECT_STREQ(p.data() + 1160, "gfx1100");
  int value = 0;
  std::memcpy(&value, p.data() + 308, 4);
  EXPECT_EQ(value, 32);
  std::memcpy(&value, p.data() + 388, 4);
  EXPECT_EQ(value, 96);
  EXPECT_EQ(p[1472], 'x') << "wrote past the struct";
  std::fill(p.begin(), p.end(), 'x');
  EXPECT_EQ(call("hipGetDeviceProperties", static_cast<void*>(p.data()), 1), hipSuccess);
  EXPECT_STREQ(p.data() + 396, "gfx942");
  std::memcpy(&value, p.data() + 336, 4);
  EXPECT_EQ(value, 304);
  EXPECT_EQ(p[792], 'x') << "wrote past the struct";
  EXPECT_EQ(call("hipSetDevice", 2), hipErrorInvalidDevice);
}

TEST_F(HipApi, LaunchesWithBothArgumentForms) {
  ASSERT_EQ(call("hipSetDevice", 0), hipSuccess);
  const hipFunction_t f = function("gfx1100", "add_u32");
  std::vector<u32> a(512), b(512), out(512);
  for (u32 i = 0; i < 512; ++i) {
    a[i] = i * 7;
    b[i] = i * i;
  }
  u32* da = device(a);
  u32* db = device(b);
  u32* dc = device(out);
  u32 n = 512;
  void* params[] = {&da, &db, &dc, &n};
  EXPECT_EQ(launch(f, 2, 256, params, nullptr), hipSuccess);
  EXPECT_EQ(call("hipMemcpyDtoH", static_cast<void*>(out.data()), static_cast<void*>(dc),
                 std::size_t{2048}),
            hipSuccess);
  for (u32 i = 0; i < 512; ++i) ASSERT_EQ(out[i], a[i] + b[i]);

  EXPECT_EQ(call("hipMemset", static_cast<void*>(dc), 0, std::size_t{2048}), hipSuccess);
  struct {
    u32 *a, *b, *c;
    u32 n;
  } packed = {da, db, dc, 512};
  std::size_t size = sizeof packed;
  void* extra[] = {reinterpret_cast<void*>(1), &packed, reinterpret_cast<void*>(2), &size,
                   reinterpret_cast<void*>(3)};
  EXPECT_EQ(launch(f, 2, 256, nullptr, extra), hipSuccess);
  EXPECT_EQ(dc[511], a[511] + b[511]) << "device memory is host memory";

  int blocks = 0;
  EXPECT_EQ(
      call("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", &blocks, f, 256, std::size_t{0}),
      hipSuccess);
  EXPECT_GT(blocks, 0);
  int threads = 0;
  EXPECT_EQ(call("hipFuncGetAttribute", &threads, 0, f), hipSuccess);
  EXPECT_EQ(threads, 1024);
  EXPECT_EQ(launch(f, 2, 2048, params, nullptr), hipErrorInvalidConfiguration);
  for (u32* p : {da, db, dc}) EXPECT_EQ(call("hipFree", static_cast<void*>(p)), hipSuccess);
}

TEST_F(HipApi, ReportsAnIllegalAccess) {
  ASSERT_EQ(call("hipSetDevice", 0), hipSuccess);
  const hipFunction_t f = function("gfx1100", "add_u32");
  u32* a = device(std::vector<u32>(512, 1));
  u32* small = device(std::vector<u32>(100, 0));
  EXPECT_EQ(launch_on_512(f, a, a, small), hipErrorIllegalAddress);
  EXPECT_STREQ(text("hipGetErrorName", call("hipGetLastError")), "hipErrorIllegalAddress");
  EXPECT_EQ(call("hipGetLastError"), hipSuccess) << "asking clears it";
  const std::string report = extension("rocflashSimLastReport");
  EXPECT_NE(report.find("\"fault\":\"out-of-bounds\""), std::string::npos) << report;
  EXPECT_NE(report.find("\"kernel\":\"add_u32\""), std::string::npos) << report;
}

TEST_F(HipApi, ReportsUndefinedMemory) {
  ASSERT_EQ(call("hipSetDevice", 0), hipSuccess);
  const hipFunction_t f = function("gfx1100", "add_u32");
  void* fresh = nullptr;
  ASSERT_EQ(call("hipMalloc", &fresh, std::size_t{2048}), hipSuccess);
  u32* out = device(std::vector<u32>(512, 0));
  EXPECT_EQ(launch_on_512(f, fresh, fresh, out), hipErrorLaunchFailure);
  EXPECT_NE(std::string(extension("rocflashSimLastReport")).find("undefined"), std::string::npos);
}

// Device memory is host memory: what the host writes there without a copy is defined too.
TEST_F(HipApi, SeesDirectWritesOfTheHost) {
  ASSERT_EQ(call("hipSetDevice", 0), hipSuccess);
  const hipFunction_t f = function("gfx1100", "add_u32");
  void* fresh = nullptr;
  ASSERT_EQ(call("hipMalloc", &fresh, std::size_t{2048}), hipSuccess);
  for (u32 i = 0; i < 512; ++i) static_cast<u32*>(fresh)[i] = i;
  u32* out = device(std::vector<u32>(512, 0));
  EXPECT_EQ(launch_on_512(f, fresh, fresh, out), hipSuccess);
  EXPECT_EQ(out[300], 600u);
}

TEST_F(HipApi, CountsWhenAsked) {
  ASSERT_EQ(call("hipSetDevice", 1), hipSuccess);
  const hipFunction_t f = function("gfx942", "block_sum");
  u32* a = device(std::vector<u32>(512, 1));
  u32* out = device(std::vector<u32>(512, 0));
  reinterpret_cast<void (*)(int)>(dlsym(library_, "rocflashSimCountLaunches"))(1);
  EXPECT_EQ(launch_on_512(f, a, a, out), hipSuccess);
  reinterpret_cast<void (*)(int)>(dlsym(library_, "rocflashSimCountLaunches"))(0);
  EXPECT_EQ(out[0], 256u);
  const std::string counters = extension("rocflashSimLastCounters");
  EXPECT_NE(counters.find("\"waves\":8"), std::string::npos) << counters;
  EXPECT_NE(counters.find("\"global_load_bytes\":2048"), std::string::npos) << counters;
  EXPECT_NE(counters.find("\"global_store_bytes\":2048"), std::string::npos) << counters;
  EXPECT_NE(counters.find("\"global_transactions_64B\":64"), std::string::npos) << counters;
}

TEST_F(HipApi, RefusesCodeForAnotherDevice) {
  ASSERT_EQ(call("hipSetDevice", 1), hipSuccess);
  const auto code = compile_hip(ROCFLASH_SIM_TEST_SOURCE "/kernels/suite.hip", "gfx1100",
                                "-O3 -ffp-contract=off -mcode-object-version=5");
  hipModule_t module = nullptr;
  EXPECT_EQ(call("hipModuleLoadData", &module, static_cast<const void*>(code.data())),
            hipErrorNoBinaryForGpu);
  const char junk[64] = "not an ELF";
  EXPECT_EQ(call("hipModuleLoadData", &module, static_cast<const void*>(junk)),
            hipErrorInvalidImage);
}

TEST_F(HipApi, KnowsItsPointers) {
  hipPointerAttribute_t attributes{};
  void* p = nullptr;
  ASSERT_EQ(call("hipMalloc", &p, std::size_t{256}), hipSuccess);
  EXPECT_EQ(call("hipPointerGetAttributes", &attributes, static_cast<const void*>(p)), hipSuccess);
  EXPECT_EQ(attributes.type, hipMemoryTypeDevice);
  std::vector<u32> host(64, 3);
  EXPECT_EQ(call("hipPointerGetAttributes", &attributes, static_cast<const void*>(host.data())),
            hipSuccess);
  EXPECT_EQ(attributes.type, hipMemoryTypeUnregistered);
  EXPECT_EQ(call("hipHostRegister", static_cast<void*>(host.data()), std::size_t{256}, 0u),
            hipSuccess);
  EXPECT_EQ(call("hipPointerGetAttributes", &attributes, static_cast<const void*>(host.data())),
            hipSuccess);
  EXPECT_EQ(attributes.type, hipMemoryTypeHost);
  EXPECT_EQ(call("hipHostUnregister", static_cast<void*>(host.data())), hipSuccess);
  EXPECT_EQ(call("hipFree", p), hipSuccess);
  EXPECT_EQ(call("hipFree", p), hipErrorInvalidValue) << "freed twice";
  EXPECT_EQ(call("hipMemcpy", p, static_cast<const void*>(host.data()), std::size_t{16},
                 hipMemcpyHostToDevice),
            hipErrorInvalidValue)
      << "copy into freed memory";
}

TEST_F(HipApi, StreamsEventsAndCaptureQueries) {
  hipStream_t stream = nullptr;
  hipEvent_t start = nullptr;
  hipEvent_t stop = nullptr;
  EXPECT_EQ(call("hipStreamCreateWithFlags", &stream, 1u), hipSuccess);
  EXPECT_EQ(call("hipEventCreate", &start), hipSuccess);
  EXPECT_EQ(call("hipEventCreate", &stop), hipSuccess);
  EXPECT_EQ(call("hipEventRecord", start, stream), hipSuccess);
  EXPECT_EQ(call("hipEventRecord", stop, stream), hipSuccess);
  float ms = -1;
  EXPECT_EQ(call("hipEventElapsedTime", &ms, start, stop), hipSuccess);
  EXPECT_GE(ms, 0);
  int status = 7;
  EXPECT_EQ(call("hipStreamIsCapturing", stream, &status), hipSuccess);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(call("hipStreamBeginCapture", stream, 0), hipErrorNotSupported);
  EXPECT_EQ(call("hipStreamSynchronize", stream), hipSuccess);
  EXPECT_EQ(call("hipStreamDestroy", stream), hipSuccess);
}

}  // namespace
}  // namespace rocflash::sim::test
