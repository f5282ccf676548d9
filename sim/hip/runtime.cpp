// The runtime's state, error names, and the extension calls of the simulator.
#include "hip/runtime.h"

#include <cstdio>

namespace rocflash::sim {
namespace {

thread_local hipError_t last_error = hipSuccess;

struct ErrorText {
  hipError_t code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {hipSuccess, "hipSuccess", "no error"},
    {hipErrorInvalidValue, "hipErrorInvalidValue", "invalid argument"},
    {hipErrorOutOfMemory, "hipErrorOutOfMemory", "out of memory"},
    {hipErrorNotInitialized, "hipErrorNotInitialized", "initialization error"},
    {hipErrorDeinitialized, "hipErrorDeinitialized", "driver shutting down"},
    {hipErrorInvalidConfiguration, "hipErrorInvalidConfiguration",
     "invalid configuration argument"},
    {hipErrorInvalidSymbol, "hipErrorInvalidSymbol", "invalid device symbol"},
    {hipErrorInvalidDevicePointer, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {hipErrorInvalidMemcpyDirection, "hipErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {hipErrorInvalidDeviceFunction, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {hipErrorNoDevice, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {hipErrorInvalidDevice, "hipErrorInvalidDevice", "invalid device ordinal"},
    {hipErrorInvalidImage, "hipErrorInvalidImage", "device kernel image is invalid"},
    {hipErrorInvalidContext, "hipErrorInvalidContext", "invalid device context"},
    {hipErrorNoBinaryForGpu, "hipErrorNoBinaryForGpu",
     "no kernel image is available for execution on the device"},
    {hipErrorInvalidSource, "hipErrorInvalidSource", "invalid source"},
    {hipErrorFileNotFound, "hipErrorFileNotFound", "file not found"},
    {hipErrorInvalidHandle, "hipErrorInvalidHandle", "invalid resource handle"},
    {hipErrorIllegalState, "hipErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {hipErrorNotFound, "hipErrorNotFound", "named symbol not found"},
    {hipErrorNotReady, "hipErrorNotReady", "device not ready"},
    {hipErrorIllegalAddress, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {hipErrorLaunchOutOfResources, "hipErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {hipErrorLaunchTimeOut, "hipErrorLaunchTimeOut", "the launch timed out and was terminated"},
    {hipErrorPeerAccessAlreadyEnabled, "hipErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {hipErrorAssert, "hipErrorAssert", "device-side assert triggered"},
    {hipErrorHostMemoryAlreadyRegistered, "hipErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {hipErrorHostMemoryNotRegistered, "hipErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {hipErrorLaunchFailure, "hipErrorLaunchFailure", "unspecified launch failure"},
    {hipErrorNotSupported, "hipErrorNotSupported", "operation not supported"},
    {hipErrorStreamCaptureUnsupported, "hipErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {hipErrorStreamCaptureInvalidated, "hipErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {hipErrorStreamCaptureIsolation, "hipErrorStreamCaptureIsolation",
     "operation would make another stream or a wait depend on a captured event"},
    {hipErrorStreamCaptureWrongThread, "hipErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {hipErrorUnknown, "hipErrorUnknown", "unknown error"},
};

const ErrorText& describe(hipError_t error) {
  for (const ErrorText& e : kErrors) {
    if (e.code == error) return e;
  }
  return kErrors[std::size(kErrors) - 1];
}

}  // namespace

Runtime::Runtime() : settings_(read_settings()) {
  count_launches = !settings_.counters.empty();
  time_launches = environment_wants_time();
}

Runtime& Runtime::instance() {
  static auto* runtime = new Runtime;  // leaked: kernels may run during static destruction
  return *runtime;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

hipError_t set_last_error(hipError_t error) {
  if (error != hipSuccess) last_error = error;
  return error;
}

void print_error(const char* call, const char* what) {
  std::fprintf(stderr, "rocflash-sim: %s: %s\n", call, what);
}

}  // namespace rocflash::sim

using rocflash::sim::Runtime;

ROCFLASH_HIP_API const char* hipGetErrorName(hipError_t error) {
  return rocflash::sim::describe(error).name;
}
ROCFLASH_HIP_API const char* hipGetErrorString(hipError_t error) {
  return rocflash::sim::describe(error).text;
}
ROCFLASH_HIP_API hipError_t hipDrvGetErrorName(hipError_t error, const char** out) {
  *out = hipGetErrorName(error);
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipDrvGetErrorString(hipError_t error, const char** out) {
  *out = hipGetErrorString(error);
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipGetLastError() {
  return std::exchange(rocflash::sim::last_error, hipSuccess);
}
ROCFLASH_HIP_API hipError_t hipPeekAtLastError() { return rocflash::sim::last_error; }

// Extensions beyond HIP: reports, counters and predicted times for tests and tools.
ROCFLASH_HIP_API const char* rocflashSimLastReport() {
  return Runtime::instance().last_report.c_str();
}
ROCFLASH_HIP_API const char* rocflashSimLastCounters() {
  return Runtime::instance().last_counters.c_str();
}
ROCFLASH_HIP_API void rocflashSimCountLaunches(int on) {
  Runtime::instance().count_launches = on != 0;
}
// 1: predict the time of every following launch; 0: off; -1: by ROCFLASH_SIM_TIME.
ROCFLASH_HIP_API void rocflashSimTimeLaunches(int on) {
  Runtime& runtime = Runtime::instance();
  runtime.time_launches = on > 0 || (on < 0 && runtime.environment_wants_time());
  runtime.predicted_us = 0;
  runtime.last_time.clear();
}
ROCFLASH_HIP_API const char* rocflashSimLastTime() { return Runtime::instance().last_time.c_str(); }
// Of all launches since the model was switched on.
ROCFLASH_HIP_API double rocflashSimPredictedMicroseconds() {
  return Runtime::instance().predicted_us;
}
