// Stream capture and graphs. A graph is the list of operations that were enqueued during capture,
// in that order; a launch of the graph runs them again.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "hip/hip_abi.h"

namespace rocflash::sim {

using GraphNode = std::function<hipError_t()>;

struct Capture {
  hipStreamCaptureMode mode;
  std::thread::id thread;
  unsigned long long id;
  bool invalidated = false;
  std::vector<GraphNode> nodes;
};

// Runs an operation of a stream, or records it while the stream is captured. What the operation
// refers to is copied into it by the caller, except for memory that the caller owns.
hipError_t enqueue(hipStream_t stream, GraphNode node);

// For calls that wait for the device or change the process (allocation, synchronous copies, loading
// of modules): an error, and the end of the capture, where the capture mode prohibits them.
hipError_t check_unsafe_call();
// The same for calls that wait for this stream.
hipError_t check_not_capturing(hipStream_t stream);

}  // namespace rocflash::sim

struct ihipStream_t {
  unsigned flags;
  int priority;
  int device;
  std::shared_ptr<rocflash::sim::Capture> capture = nullptr;
};

namespace rocflash::sim {

// The handles 0, 1 and 2 are the null stream, the legacy and the per-thread default stream.
inline bool is_default_stream(hipStream_t stream) {
  return reinterpret_cast<std::uintptr_t>(stream) <= 2;
}
inline bool is_capturing(hipStream_t stream) {
  return !is_default_stream(stream) && stream->capture != nullptr;
}

}  // namespace rocflash::sim
