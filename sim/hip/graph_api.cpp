// Stream capture and graphs (see graph.h). The rules of capture modes are those of HIP and CUDA.
#include "hip/graph.h"

#include <algorithm>

#include "hip/runtime.h"

struct ihipGraph_t {
  std::vector<rocflash::sim::GraphNode> nodes;
};
struct ihipGraphExec_t {
  std::shared_ptr<const std::vector<rocflash::sim::GraphNode>> nodes;
};

namespace rocflash::sim {
namespace {

struct Captures {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> active;
  unsigned long long last_id = 0;
};

Captures& captures() {
  static Captures all;
  return all;
}

// What this thread has set with hipThreadExchangeStreamCaptureMode.
thread_local hipStreamCaptureMode thread_mode = hipStreamCaptureModeGlobal;

bool valid_mode(int mode) {
  return mode >= hipStreamCaptureModeGlobal && mode <= hipStreamCaptureModeRelaxed;
}

hipError_t run(const std::vector<GraphNode>& nodes) {
  for (const GraphNode& node : nodes) {
    if (const hipError_t error = node(); error != hipSuccess) return error;
  }
  return hipSuccess;
}

hipError_t instantiate(hipGraphExec_t* executable, hipGraph_t graph) {
  if (executable == nullptr || graph == nullptr) return hipErrorInvalidValue;
  *executable = new ihipGraphExec_t{std::make_shared<const std::vector<GraphNode>>(graph->nodes)};
  return hipSuccess;
}

hipError_t capture_info(hipStream_t stream, int* status, unsigned long long* id) {
  if (status == nullptr) return hipErrorInvalidValue;
  if (id != nullptr) *id = 0;
  *status = hipStreamCaptureStatusNone;
  if (!is_capturing(stream)) return hipSuccess;
  const std::scoped_lock lock(captures().mutex);
  *status = stream->capture->invalidated ? hipStreamCaptureStatusInvalidated
                                         : hipStreamCaptureStatusActive;
  if (id != nullptr) *id = stream->capture->id;
  return hipSuccess;
}

}  // namespace

hipError_t enqueue(hipStream_t stream, GraphNode node) {
  if (!is_capturing(stream)) return node();
  const std::scoped_lock lock(captures().mutex);
  if (stream->capture->invalidated) return hipErrorStreamCaptureInvalidated;
  stream->capture->nodes.push_back(std::move(node));
  return hipSuccess;
}

hipError_t check_unsafe_call() {
  if (thread_mode == hipStreamCaptureModeRelaxed) return hipSuccess;
  const auto here = std::this_thread::get_id();
  bool prohibited = false;
  const std::scoped_lock lock(captures().mutex);
  for (const auto& capture : captures().active) {
    const bool of_this_thread =
        capture->thread == here && capture->mode != hipStreamCaptureModeRelaxed;
    const bool of_all_threads =
        thread_mode == hipStreamCaptureModeGlobal && capture->mode == hipStreamCaptureModeGlobal;
    if (of_this_thread || of_all_threads) prohibited = capture->invalidated = true;
  }
  return prohibited ? hipErrorStreamCaptureUnsupported : hipSuccess;
}

hipError_t check_not_capturing(hipStream_t stream) {
  if (!is_capturing(stream)) return hipSuccess;
  const std::scoped_lock lock(captures().mutex);
  stream->capture->invalidated = true;
  return hipErrorStreamCaptureUnsupported;
}

}  // namespace rocflash::sim

using namespace rocflash::sim;

ROCFLASH_HIP_API hipError_t hipStreamBeginCapture(hipStream_t stream, int mode) {
  return guarded("hipStreamBeginCapture", [&] {
    if (!valid_mode(mode)) return hipErrorInvalidValue;
    if (is_default_stream(stream)) return hipErrorStreamCaptureUnsupported;
    if (is_capturing(stream)) return hipErrorIllegalState;
    const std::scoped_lock lock(captures().mutex);
    stream->capture = std::make_shared<Capture>(Capture{static_cast<hipStreamCaptureMode>(mode),
                                                        std::this_thread::get_id(),
                                                        ++captures().last_id,
                                                        false,
                                                        {}});
    captures().active.push_back(stream->capture);
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  return guarded("hipStreamEndCapture", [&] {
    if (graph == nullptr) return hipErrorInvalidValue;
    *graph = nullptr;
    if (!is_capturing(stream)) return hipErrorIllegalState;
    const std::scoped_lock lock(captures().mutex);
    const auto capture = stream->capture;
    if (capture->mode != hipStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id()) {
      return hipErrorStreamCaptureWrongThread;
    }
    stream->capture = nullptr;
    std::erase(captures().active, capture);
    if (capture->invalidated) return hipErrorStreamCaptureInvalidated;
    *graph = new ihipGraph_t{std::move(capture->nodes)};
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipStreamIsCapturing(hipStream_t stream, int* status) {
  return guarded("hipStreamIsCapturing", [&] { return capture_info(stream, status, nullptr); });
}
ROCFLASH_HIP_API hipError_t hipStreamGetCaptureInfo(hipStream_t stream, int* status,
                                                    unsigned long long* id) {
  return guarded("hipStreamGetCaptureInfo", [&] { return capture_info(stream, status, id); });
}
// Nodes have no handles, so graph and dependencies are null.
ROCFLASH_HIP_API hipError_t hipStreamGetCaptureInfo_v2(hipStream_t stream, int* status,
                                                       unsigned long long* id, hipGraph_t* graph,
                                                       const void** dependencies,
                                                       std::size_t* count) {
  return guarded("hipStreamGetCaptureInfo_v2", [&] {
    if (graph != nullptr) *graph = nullptr;
    if (dependencies != nullptr) *dependencies = nullptr;
    if (count != nullptr) *count = 0;
    return capture_info(stream, status, id);
  });
}

ROCFLASH_HIP_API hipError_t hipThreadExchangeStreamCaptureMode(int* mode) {
  return guarded("hipThreadExchangeStreamCaptureMode", [&] {
    if (mode == nullptr || !valid_mode(*mode)) return hipErrorInvalidValue;
    const auto wanted = static_cast<hipStreamCaptureMode>(*mode);
    *mode = thread_mode;
    thread_mode = wanted;
    return hipSuccess;
  });
}

// With a null list of nodes: their number.
ROCFLASH_HIP_API hipError_t hipGraphGetNodes(hipGraph_t graph, void** nodes, std::size_t* count) {
  return guarded("hipGraphGetNodes", [&] {
    if (graph == nullptr || count == nullptr) return hipErrorInvalidValue;
    if (nodes != nullptr) return hipErrorNotSupported;
    *count = graph->nodes.size();
    return hipSuccess;
  });
}
ROCFLASH_HIP_API hipError_t hipGraphDestroy(hipGraph_t graph) {
  if (graph == nullptr) return set_last_error(hipErrorInvalidValue);
  delete graph;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipGraphInstantiate(hipGraphExec_t* executable, hipGraph_t graph,
                                                void** /*error_node*/, char* log,
                                                std::size_t log_size) {
  return guarded("hipGraphInstantiate", [&] {
    if (log != nullptr && log_size > 0) *log = 0;
    return instantiate(executable, graph);
  });
}
ROCFLASH_HIP_API hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* executable,
                                                         hipGraph_t graph,
                                                         unsigned long long flags) {
  return guarded("hipGraphInstantiateWithFlags", [&] {
    // 1: free memory that the graph allocated; graphs here allocate none.
    return flags > 1 ? hipErrorNotSupported : instantiate(executable, graph);
  });
}
ROCFLASH_HIP_API hipError_t hipGraphExecDestroy(hipGraphExec_t executable) {
  if (executable == nullptr) return set_last_error(hipErrorInvalidValue);
  delete executable;
  return hipSuccess;
}
ROCFLASH_HIP_API hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream) {
  return guarded("hipGraphLaunch", [&] {
    if (executable == nullptr) return hipErrorInvalidValue;
    return enqueue(stream, [nodes = executable->nodes] { return run(*nodes); });
  });
}
