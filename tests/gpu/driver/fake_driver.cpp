// A fake driver library, built several times: as HIP with either layout of hipDeviceProp_t, as
// CUDA, and as HIP that lacks a function. It logs its calls; tests read the log through fake_log.
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

// Static TLS: dynamic TLS would allocate, and tests make allocations fail.
#define FAKE_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) thread_local
#define FAKE extern "C" __attribute__((visibility("default")))

// A definition below that differs from the library's declaration does not compile.
#define FAKE_DECLARATION(need, name, symbol, result, ...) FAKE result symbol(__VA_ARGS__);
#if defined(FAKE_HIP)
#define ROCFLASH_HIP_LAUNCH FAKE_DECLARATION
#elif defined(FAKE_CUDA)
#define ROCFLASH_CUDA_LAUNCH FAKE_DECLARATION
#endif
#include "gpu/driver/symbols.inc"

namespace {

std::mutex mutex;
char log_text[1 << 16] = "";  // static: tests make allocations fail
std::size_t written = 0;
std::atomic<int> holding{0};  // 1: loads must wait; 2: a load is waiting
std::atomic<int> silent{0};   // no logging, for the test of host overhead
FAKE_THREAD_LOCAL int device = 0;

[[gnu::format(printf, 1, 2)]] void note(const char* format, ...) {
  if (silent) return;
  const std::lock_guard lock(mutex);
  va_list values;
  va_start(values, format);
  const int length = std::vsnprintf(log_text + written, sizeof log_text - written, format, values);
  va_end(values);
  written += static_cast<std::size_t>(length);
  if (written + 2 > sizeof log_text) std::abort();
  std::strcpy(log_text + written++, "\n");
}

unsigned long number(const void* pointer) {
  return static_cast<unsigned long>(reinterpret_cast<std::uintptr_t>(pointer));
}

void wait_while_held() {
  if (holding) holding = 2;
  while (holding) {
  }
}

int variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : 0;
}

}  // namespace

FAKE const char* fake_log() { return log_text; }
FAKE void fake_clear() {
  written = 0;
  log_text[0] = '\0';
}
FAKE void fake_silence() { silent = 1; }
FAKE void fake_hold(int hold) { holding = hold; }
FAKE int fake_held() { return holding == 2; }

#if defined(FAKE_HIP)

FAKE const char* hipGetErrorString(int error) {
  return error == 100 ? "no device" : "fake trouble";
}
FAKE int hipGetLastError() {
  note("last error");
  return 0;
}
FAKE int hipGetDeviceCount(int* count) {
  *count = 2;
  return variable("FAKE_COUNT_ERROR");
}
static int properties(void* p, int index, std::size_t arch, std::size_t units) {
  const char* names[] = {"gfx942:sramecc+:xnack-", "gfx803"};
  const int cus[] = {304, 60};
  std::strcpy(static_cast<char*>(p), index == 0 ? "Fake MI300X" : "Fake Nano");
  std::strcpy(static_cast<char*>(p) + arch, names[index]);
  std::memcpy(static_cast<char*>(p) + units, &cus[index], sizeof(int));
  return 0;
}
#if FAKE_HIP == 6
FAKE int hipGetDevicePropertiesR0600(void* p, int index) { return properties(p, index, 1160, 388); }
#else
FAKE int hipGetDeviceProperties(void* p, int index) { return properties(p, index, 396, 336); }
#endif
FAKE int hipGetDevice(int* which) {
  *which = device;
  return 0;
}
FAKE int hipSetDevice(int which) {
  note("device %d", which);
  device = which;
  return 0;
}
FAKE int hipThreadExchangeStreamCaptureMode(int* mode) {
  static FAKE_THREAD_LOCAL int current = 0;
  note("capture mode %d", *mode);
  const int before = current;
  current = *mode;
  *mode = before;
  return 0;
}
FAKE int hipModuleLoadData(void** module, const void*) {
  note("load on %d", device);
  wait_while_held();
  *module = reinterpret_cast<void*>(static_cast<std::uintptr_t>(100 + device));
  return variable("FAKE_LOAD_ERROR");
}
FAKE int hipModuleGetFunction(void** function, void*, const char* name) {
  note("function %s", name);
  *function = reinterpret_cast<void*>(7);
  return 0;
}
#if !defined(FAKE_WITHOUT_LAUNCH)
FAKE int hipModuleLaunchKernel(void*, unsigned gx, unsigned, unsigned, unsigned bx, unsigned,
                               unsigned, unsigned, void* stream, void**, void**) {
  note("launch %u x %u on device %d stream %lu", gx, bx, device, number(stream));
  return variable("FAKE_LAUNCH_ERROR");
}
#endif

#elif defined(FAKE_CUDA)

// Contexts are integers: 1000 + device is a primary context, others belong to device 0.
namespace {
FAKE_THREAD_LOCAL std::uintptr_t stack[8] = {};
FAKE_THREAD_LOCAL int depth = 0;
}  // namespace

FAKE void fake_set_context(std::uintptr_t context) {
  depth = context ? 1 : 0;
  stack[0] = context;
}
FAKE int cuInit(unsigned) {
  note("init");
  return 0;
}
FAKE int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return 0;
}
FAKE int cuGetErrorString(int, const char** message) {
  *message = "fake trouble";
  return 0;
}
FAKE int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
FAKE int cuDeviceGet(int* handle, int index) {
  *handle = index;
  return 0;
}
FAKE int cuDeviceGetName(char* name, int, int) {
  std::strcpy(name, "Fake H200");
  return 0;
}
FAKE int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 75 ? 9 : which == 76 ? 0 : which == 16 ? 132 : -1;
  return 0;
}
FAKE int cuDevicePrimaryCtxRetain(void** context, int index) {
  note("retain %d", index);
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(1000 + index));
  return 0;
}
FAKE int cuCtxGetCurrent(void** context) {
  *context = depth > 0 ? reinterpret_cast<void*>(stack[depth - 1]) : nullptr;
  return 0;
}
FAKE int cuCtxGetDevice(int* index) {
  *index = stack[depth - 1] >= 1000 ? static_cast<int>(stack[depth - 1]) - 1000 : 0;
  return 0;
}
FAKE int cuCtxPushCurrent_v2(void* context) {
  stack[depth++] = reinterpret_cast<std::uintptr_t>(context);
  note("push %lu", static_cast<unsigned long>(stack[depth - 1]));
  return 0;
}
FAKE int cuCtxPopCurrent_v2(void** context) {
  *context = reinterpret_cast<void*>(stack[--depth]);
  note("pop");
  return 0;
}
FAKE int cuThreadExchangeStreamCaptureMode(int* mode) {
  note("capture mode %d", *mode);
  *mode = 0;
  return 0;
}
FAKE int cuModuleLoadDataEx(void** module, const void*, unsigned count, int* options,
                            void** values) {
  note("load in %lu", static_cast<unsigned long>(depth > 0 ? stack[depth - 1] : 0));
  wait_while_held();
  if (variable("FAKE_LOAD_ERROR") != 0 && count == 2 && options[0] == 5)
    std::strcpy(static_cast<char*>(values[0]), "line 3: no such instruction");
  *module = reinterpret_cast<void*>(5);
  return variable("FAKE_LOAD_ERROR");
}
FAKE int cuModuleGetFunction(void** function, void*, const char* name) {
  note("function %s", name);
  *function = reinterpret_cast<void*>(7);
  return 0;
}
FAKE int cuFuncSetAttribute(void*, int which, int value) {
  note("attribute %d = %d", which, value);
  return 0;
}
FAKE int cuTensorMapEncodeTiled(void* map, int dtype, unsigned rank, const void* data,
                                const std::uint64_t* sizes, const std::uint64_t* strides,
                                const std::uint32_t* box, const std::uint32_t*, int, int swizzle,
                                int, int) {
  note("map %d rank %u at %lu: %lu %lu %lu %lu by %lu %lu %lu box %u %u swizzle %d", dtype, rank,
       number(data), sizes[0], sizes[1], sizes[2], sizes[3], strides[0], strides[1], strides[2],
       box[0], box[1], swizzle);
  *static_cast<unsigned long long*>(map) = 7;
  return variable("FAKE_MAP_ERROR");
}

FAKE int cuLaunchKernel(void*, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned,
                        unsigned shared, void* stream, void**, void**) {
  note("launch %u x %u shared %u in %lu stream %lu", gx, bx, shared,
       static_cast<unsigned long>(stack[depth - 1]), number(stream));
  return variable("FAKE_LAUNCH_ERROR");
}
// As declared in cuda.h.
struct FakeAttribute {
  int which;
  char pad[4];
  unsigned value[16];
};
struct FakeConfig {
  unsigned gx, gy, gz, bx, by, bz, shared;
  void* stream;
  FakeAttribute* attributes;
  unsigned count;
};
FAKE int cuLaunchKernelEx(const void* config, void*, void**, void**) {
  const auto* c = static_cast<const FakeConfig*>(config);
  note("launch %u %u %u x %u shared %u in %lu stream %lu", c->gx, c->gy, c->gz, c->bx, c->shared,
       static_cast<unsigned long>(stack[depth - 1]), number(c->stream));
  for (unsigned n = 0; n < c->count; ++n) {
    const FakeAttribute& a = c->attributes[n];
    note("with %d = %u %u %u", a.which, a.value[0], a.value[1], a.value[2]);
  }
  return variable("FAKE_LAUNCH_ERROR");
}
FAKE int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

#endif
