// Streams and events. Launches are synchronous, so stream order is trivial; events
// record the time.
#include <chrono>

#include "hip/graph.h"
#include "hip/runtime.h"

using namespace rocflash::sim;

struct ihipEvent_t {
  std::chrono::steady_clock::time_point time;
  bool recorded;
  std::weak_ptr<Capture> capture = {};  // recorded in a stream that was captured
};

namespace {

hipError_t wait_for(hipEvent_t event) {
  if (event == nullptr) return hipErrorInvalidHandle;
  return event->capture.expired() ? hipSuccess : hipErrorStreamCaptureIsolation;
}

}  // namespace

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
  if (is_default_stream(stream)) return set_last_error(hipErrorInvalidHandle);
  if (const hipError_t error = check_not_capturing(stream); error != hipSuccess) {
    return set_last_error(error);
  }
  delete stream;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamSynchronize(hipStream_t stream) {
  return set_last_error(is_default_stream(stream) ? check_unsafe_call()
                                                  : check_not_capturing(stream));
}
ROCFLASH_HIP_API hipError_t hipStreamQuery(hipStream_t stream) {
  return set_last_error(is_default_stream(stream) ? check_unsafe_call()
                                                  : check_not_capturing(stream));
}
// A captured stream may wait for its own events and for those of uncaptured streams, whose work is
// complete. A fork to another stream is not supported.
ROCFLASH_HIP_API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  if (event == nullptr) return set_last_error(hipErrorInvalidHandle);
  const auto captured = event->capture.lock();
  if (captured == nullptr) return hipSuccess;
  if (is_capturing(stream) && stream->capture == captured) return hipSuccess;
  print_error("hipStreamWaitEvent", "capture of a fork to another stream is not supported");
  return set_last_error(hipErrorNotSupported);
}
ROCFLASH_HIP_API hipError_t hipStreamGetFlags(hipStream_t stream, unsigned* flags) {
  if (flags == nullptr) return set_last_error(hipErrorInvalidValue);
  *flags = !is_default_stream(stream) ? stream->flags : 0;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
  if (priority == nullptr) return set_last_error(hipErrorInvalidValue);
  *priority = !is_default_stream(stream) ? stream->priority : 0;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t* device) {
  if (device == nullptr) return set_last_error(hipErrorInvalidValue);
  *device = !is_default_stream(stream) ? stream->device : current_device();
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return hipSuccess;
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
ROCFLASH_HIP_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  if (event == nullptr) return set_last_error(hipErrorInvalidHandle);
  if (is_capturing(stream)) {
    event->capture = stream->capture;
    event->recorded = false;
    return hipSuccess;
  }
  event->capture.reset();
  event->time = std::chrono::steady_clock::now();
  event->recorded = true;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipEventSynchronize(hipEvent_t event) {
  return set_last_error(wait_for(event));
}
ROCFLASH_HIP_API hipError_t hipEventQuery(hipEvent_t event) {
  return set_last_error(wait_for(event));
}
ROCFLASH_HIP_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start,
                                                hipEvent_t stop) {
  if (milliseconds == nullptr || start == nullptr || stop == nullptr || !start->recorded ||
      !stop->recorded) {
    return set_last_error(hipErrorInvalidHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(stop->time - start->time).count();
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipEventDestroy(hipEvent_t event) {
  if (event == nullptr) return set_last_error(hipErrorInvalidHandle);
  delete event;
  return hipSuccess;
}
