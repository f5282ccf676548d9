// Streams and events. Work is done when it is submitted, so stream order holds by itself; events
// only take the time.
#include <chrono>

#include "hip/runtime.h"

struct ihipStream_t {
  unsigned flags;
  int priority;
  int device;
};
struct ihipEvent_t {
  std::chrono::steady_clock::time_point time;
  bool recorded;
};

using namespace rocflash::sim;

ROCFLASH_HIP_API hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags,
                                                        int priority) {
  return guarded("hipStreamCreate", [&] {
    if (stream == nullptr) return hipErrorInvalidValue;
    *stream = new ihipStream_t{flags, priority, current_device()};
    return hipSuccess;
  });
}
ROCFLASH_HIP_API hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return hipStreamCreateWithPriority(stream, flags, 0);
}
ROCFLASH_HIP_API hipError_t hipStreamCreate(hipStream_t* stream) {
  return hipStreamCreateWithPriority(stream, 0, 0);
}
ROCFLASH_HIP_API hipError_t hipStreamDestroy(hipStream_t stream) {
  if (stream == nullptr) return remember(hipErrorInvalidHandle);
  delete stream;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
ROCFLASH_HIP_API hipError_t hipStreamQuery(hipStream_t) { return hipSuccess; }
ROCFLASH_HIP_API hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned) {
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamGetFlags(hipStream_t stream, unsigned* flags) {
  if (flags == nullptr) return remember(hipErrorInvalidValue);
  *flags = stream != nullptr ? stream->flags : 0;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
  if (priority == nullptr) return remember(hipErrorInvalidValue);
  *priority = stream != nullptr ? stream->priority : 0;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t* device) {
  if (device == nullptr) return remember(hipErrorInvalidValue);
  *device = stream != nullptr ? stream->device : current_device();
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return hipSuccess;
}

// Nothing is ever being captured; the questions are answered, the request is refused.
ROCFLASH_HIP_API hipError_t hipStreamIsCapturing(hipStream_t, int* status) {
  if (status == nullptr) return remember(hipErrorInvalidValue);
  *status = 0;  // hipStreamCaptureStatusNone
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamGetCaptureInfo(hipStream_t, int* status,
                                                    unsigned long long* id) {
  if (status == nullptr) return remember(hipErrorInvalidValue);
  *status = 0;
  if (id != nullptr) *id = 0;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamGetCaptureInfo_v2(hipStream_t, int* status,
                                                       unsigned long long* id, void** graph,
                                                       const void** dependencies,
                                                       std::size_t* count) {
  if (status == nullptr) return remember(hipErrorInvalidValue);
  *status = 0;
  if (id != nullptr) *id = 0;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamBeginCapture(hipStream_t, int) {
  return remember(hipErrorNotSupported);
}
ROCFLASH_HIP_API hipError_t hipStreamEndCapture(hipStream_t, void** graph) {
  if (graph != nullptr) *graph = nullptr;
  return remember(hipErrorNotSupported);
}

ROCFLASH_HIP_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
  return guarded("hipEventCreate", [&] {
    if (event == nullptr) return hipErrorInvalidValue;
    *event = new ihipEvent_t{{}, false};
    return hipSuccess;
  });
}
ROCFLASH_HIP_API hipError_t hipEventCreate(hipEvent_t* event) {
  return hipEventCreateWithFlags(event, 0);
}
ROCFLASH_HIP_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t) {
  if (event == nullptr) return remember(hipErrorInvalidHandle);
  event->time = std::chrono::steady_clock::now();
  event->recorded = true;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipEventSynchronize(hipEvent_t event) {
  return event == nullptr ? remember(hipErrorInvalidHandle) : hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipEventQuery(hipEvent_t event) {
  return event == nullptr ? remember(hipErrorInvalidHandle) : hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start,
                                                hipEvent_t stop) {
  if (milliseconds == nullptr || start == nullptr || stop == nullptr || !start->recorded ||
      !stop->recorded) {
    return remember(hipErrorInvalidHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(stop->time - start->time).count();
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipEventDestroy(hipEvent_t event) {
  if (event == nullptr) return remember(hipErrorInvalidHandle);
  delete event;
  return hipSuccess;
}
