// The simulator's libamdhip64 as a program uses it: dlopen, then calls through HIP's C ABI.
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

// hipModuleLoad: a truncated or corrupt file is an error code.
TEST_F(HipApi, RejectsCorruptCodeObjects) {
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
  EXPECT_EQ(call("hipGetLastError"), hipSuccess) << "the query clears it";
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
TEST_F(HipApi, DirectWritesOfTheHostAreDefined) {
  ASSERT_EQ(call("hipSetDevice", 0), hipSuccess);
  const hipFunction_t f = function("gfx1100", "add_u32");
  void* fresh = nullptr;
  ASSERT_EQ(call("hipMalloc", &fresh, std::size_t{2048}), hipSuccess);
  for (u32 i = 0; i < 512; ++i) static_cast<u32*>(fresh)[i] = i;
  u32* out = device(std::vector<u32>(512, 0));
  EXPECT_EQ(launch_on_512(f, fresh, fresh, out), hipSuccess);
  EXPECT_EQ(out[300], 600u);
}

TEST_F(HipApi, CountsOnRequest) {
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

TEST_F(HipApi, RejectsCodeForAnotherTarget) {
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

TEST_F(HipApi, ReportsPointerAttributes) {
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

TEST_F(HipApi, StreamsAndEvents) {
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
  EXPECT_EQ(call("hipStreamSynchronize", stream), hipSuccess);
  EXPECT_EQ(call("hipStreamDestroy", stream), hipSuccess);
}

class HipGraph : public HipApi {
 protected:
  void SetUp() override {
    EXPECT_EQ(call("hipSetDevice", 1), hipSuccess);
    EXPECT_EQ(call("hipStreamCreateWithFlags", &stream_, 1u), hipSuccess);
  }
  void TearDown() override { EXPECT_EQ(call("hipStreamDestroy", stream_), hipSuccess); }

  void begin(hipStreamCaptureMode mode = hipStreamCaptureModeGlobal) {
    ASSERT_EQ(call("hipStreamBeginCapture", stream_, static_cast<int>(mode)), hipSuccess);
  }
  hipError_t end(hipGraph_t* graph) { return call("hipStreamEndCapture", stream_, graph); }
  int status() {
    int value = -1;
    EXPECT_EQ(call("hipStreamIsCapturing", stream_, &value), hipSuccess);
    return value;
  }

  hipStream_t stream_ = nullptr;
};

// Arguments are those of the capture, memory is read at each launch of the graph.
TEST_F(HipGraph, ReplaysLaunchesCopiesAndFills) {
  const hipFunction_t f = function("gfx942", "softmax_block");
  const std::vector<float> ones(512, 1.0f);
  std::vector<float> host(512, 0.0f);
  float* in = device(ones);
  float* other = device(ones);
  float* out = device(host);
  float* copy = device(host);
  begin();
  EXPECT_EQ(status(), hipStreamCaptureStatusActive);
  {
    u32 n = 512;
    void* params[] = {&in, &in, &out, &n};
    EXPECT_EQ(call("hipModuleLaunchKernel", f, 2u, 1u, 1u, 256u, 1u, 1u, 0u, stream_, params,
                   static_cast<void**>(nullptr)),
              hipSuccess);
    params[0] = params[1] = &other;  // the graph has a copy of the arguments
    n = 0;
  }
  EXPECT_EQ(call("hipMemcpyAsync", static_cast<void*>(copy), static_cast<const void*>(out),
                 512 * sizeof(float), hipMemcpyDeviceToDevice, stream_),
            hipSuccess);
  EXPECT_EQ(call("hipMemsetAsync", static_cast<void*>(out), 0, 512 * sizeof(float), stream_),
            hipSuccess);
  EXPECT_EQ(copy[0], 0.0f) << "nothing runs during capture";
  hipGraph_t graph = nullptr;
  ASSERT_EQ(end(&graph), hipSuccess);
  EXPECT_EQ(status(), hipStreamCaptureStatusNone);
  std::size_t nodes = 0;
  EXPECT_EQ(call("hipGraphGetNodes", graph, static_cast<void**>(nullptr), &nodes), hipSuccess);
  EXPECT_EQ(nodes, 3u);
  hipGraphExec_t executable = nullptr;
  ASSERT_EQ(call("hipGraphInstantiate", &executable, graph, static_cast<void**>(nullptr),
                 static_cast<char*>(nullptr), std::size_t{0}),
            hipSuccess);
  EXPECT_EQ(call("hipGraphDestroy", graph), hipSuccess) << "the executable graph does not need it";
  EXPECT_EQ(copy[0], 0.0f);
  EXPECT_EQ(call("hipGraphLaunch", executable, stream_), hipSuccess);
  const float first = copy[0];
  EXPECT_NEAR(first, 1.0f / 256, 1e-6f);
  EXPECT_EQ(out[0], 0.0f) << "filled after the copy";
  in[3] = 2.0f;
  EXPECT_EQ(call("hipGraphLaunch", executable, stream_), hipSuccess);
  EXPECT_NE(copy[3], first) << "the launch reads memory again";
  EXPECT_EQ(call("hipGraphExecDestroy", executable), hipSuccess);
}

TEST_F(HipGraph, UnsafeCallsInvalidateTheCapture) {
  void* p = nullptr;
  hipGraph_t graph = nullptr;
  begin();
  EXPECT_EQ(call("hipMalloc", &p, std::size_t{64}), hipErrorStreamCaptureUnsupported);
  EXPECT_EQ(status(), hipStreamCaptureStatusInvalidated);
  EXPECT_EQ(end(&graph), hipErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
  begin();
  EXPECT_EQ(call("hipStreamSynchronize", stream_), hipErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(&graph), hipErrorStreamCaptureInvalidated);
  begin(hipStreamCaptureModeThreadLocal);
  EXPECT_EQ(call("hipDeviceSynchronize"), hipErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(&graph), hipErrorStreamCaptureInvalidated);
  // Relaxed: by the capture, or for a while by this thread, as rocflash loads kernels.
  begin(hipStreamCaptureModeRelaxed);
  EXPECT_EQ(call("hipMalloc", &p, std::size_t{64}), hipSuccess);
  EXPECT_EQ(end(&graph), hipSuccess);
  EXPECT_EQ(call("hipGraphDestroy", graph), hipSuccess);
  begin();
  int mode = hipStreamCaptureModeRelaxed;
  EXPECT_EQ(call("hipThreadExchangeStreamCaptureMode", &mode), hipSuccess);
  EXPECT_EQ(mode, hipStreamCaptureModeGlobal);
  EXPECT_EQ(call("hipFree", p), hipSuccess);
  EXPECT_EQ(call("hipThreadExchangeStreamCaptureMode", &mode), hipSuccess);
  EXPECT_EQ(end(&graph), hipSuccess);
  EXPECT_EQ(call("hipGraphDestroy", graph), hipSuccess);
}

TEST_F(HipGraph, RejectsWhatItDoesNotReplay) {
  hipGraph_t graph = nullptr;
  hipStream_t other = nullptr;
  hipEvent_t event = nullptr;
  EXPECT_EQ(call("hipStreamBeginCapture", hipStream_t{}, 0), hipErrorStreamCaptureUnsupported);
  EXPECT_EQ(call("hipStreamBeginCapture", stream_, 3), hipErrorInvalidValue);
  EXPECT_EQ(end(&graph), hipErrorIllegalState) << "no capture has begun";
  EXPECT_EQ(call("hipStreamCreateWithFlags", &other, 1u), hipSuccess);
  EXPECT_EQ(call("hipEventCreate", &event), hipSuccess);
  begin();
  EXPECT_EQ(call("hipStreamBeginCapture", stream_, 0), hipErrorIllegalState);
  EXPECT_EQ(call("hipEventRecord", event, stream_), hipSuccess);
  EXPECT_EQ(call("hipStreamWaitEvent", stream_, event, 0u), hipSuccess);
  EXPECT_EQ(call("hipStreamWaitEvent", other, event, 0u), hipErrorNotSupported);
  EXPECT_EQ(call("hipEventSynchronize", event), hipErrorStreamCaptureIsolation);
  EXPECT_EQ(end(&graph), hipSuccess);
  EXPECT_EQ(call("hipGraphDestroy", graph), hipSuccess);
  EXPECT_EQ(call("hipEventDestroy", event), hipSuccess);
  EXPECT_EQ(call("hipStreamDestroy", other), hipSuccess);
}

}  // namespace
}  // namespace rocflash::sim::test
