#include "xla/handlers.hpp"

#include <new>
#include <string>

#include "api/check.hpp"
#include "core/error.hpp"
#include "platform/memory.hpp"
#include "xla/call.hpp"

namespace rocflash::xla {
namespace {

// The arguments of a function of XLA's API, with their size.
template <class Args>
Args arguments_of(Context* context) {
  Args args{};
  args.header.struct_size = sizeof args;
  args.context = context;
  return args;
}

// Throws for an error of XLA, which it destroys.
void check(const Api& api, Error* error, rocflash_status status, const char* what) {
  if (!error) return;
  ErrorArgs args{};
  args.header.struct_size = sizeof args;
  args.error = error;
  api.error_message(&args);
  const std::string message = text(what, ": ", args.message ? args.message : "");
  args.header.struct_size = offsetof(ErrorArgs, message);
  api.error_destroy(&args);
  throw Refusal(status, message);
}

// Scratch memory of one call. XLA's allocator serves a GPU: it orders reuse by the stream, so the
// memory is returned when the work is enqueued.
class Workspace {
 public:
  Workspace(const CallFrame& frame, bool on_host, std::size_t size)
      : api_(*frame.api), context_(frame.context), on_host_(on_host), size_(size) {
    if (size == 0) return;
    if (on_host) {
      data_ = platform::aligned_allocate(alignment, (size + alignment - 1) / alignment * alignment);
      if (!data_) throw std::bad_alloc();
      return;
    }
    if (!has_field(api_, api_.free))
      refuse_unsupported("XLA's FFI has no device memory; a newer jaxlib is needed");
    auto args = arguments_of<AllocateArgs>(context_);
    args.size = size;
    args.alignment = alignment;
    check(api_, api_.allocate(&args), ROCFLASH_OUT_OF_MEMORY, "XLA cannot allocate the workspace");
    data_ = args.data;
  }
  ~Workspace() {
    if (on_host_) platform::aligned_free(data_);
    if (on_host_ || !data_) return;
    auto args = arguments_of<FreeArgs>(context_);
    args.size = size_;
    args.data = data_;
    if (Error* error = api_.free(&args)) {
      ErrorArgs destroyed{};
      destroyed.header.struct_size = offsetof(ErrorArgs, message);
      destroyed.error = error;
      api_.error_destroy(&destroyed);
    }
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  static constexpr std::size_t alignment = 256;

  const Api& api_;
  Context* context_;
  bool on_host_;
  std::size_t size_;
  void* data_ = nullptr;
};

DLDevice device_of(const CallFrame& frame, DLDeviceType type) {
  if (type == kDLCPU) return {type, 0};
  const Api& api = *frame.api;
  if (!has_field(api, api.device_ordinal_get))
    refuse_unsupported("XLA's FFI does not name the device; a newer jaxlib is needed");
  auto args = arguments_of<DeviceOrdinalGetArgs>(frame.context);
  check(api, api.device_ordinal_get(&args), ROCFLASH_DEVICE_ERROR, "XLA names no device");
  return {type, args.ordinal};
}

void* stream_of(const CallFrame& frame, DLDeviceType type) {
  if (type == kDLCPU) return nullptr;
  auto args = arguments_of<StreamGetArgs>(frame.context);
  check(*frame.api, frame.api->stream_get(&args), ROCFLASH_DEVICE_ERROR, "XLA has no stream");
  return args.stream;
}

template <class Checked>
void run(Checked checked, const CallFrame& frame, bool on_host) {
  Resources& resources = checked.call.resources;
  resources.workspace_size = checked.workspace();
  const Workspace workspace(frame, on_host, resources.workspace_size);
  resources.workspace = workspace.data();
  checked.run();
}

void execute(const CallFrame& frame, DLDeviceType type) {
  const bool on_host = type == kDLCPU;
  Call call(frame, device_of(frame, type));
  Structs& s = call.structs;
  s.execution.stream = stream_of(frame, type);
  switch (call.operation) {
    case Operation::forward:
      return run(check_forward(&s.problem, &s.outputs, &s.execution, Data::required), frame,
                 on_host);
    case Operation::infer:
      return run(check_decode(&s.problem, nullptr, &s.outputs, &s.execution, Data::required), frame,
                 on_host);
    case Operation::decode:
      return run(check_decode(&s.problem, &s.append, &s.outputs, &s.execution, Data::required),
                 frame, on_host);
    case Operation::backward:
      return run(check_backward(&s.problem, &s.gradients, &s.execution, Data::required), frame,
                 on_host);
  }
}

ErrorCode code_of(rocflash_status status) {
  switch (status) {
    case ROCFLASH_INVALID_ARGUMENT:
      return ErrorCode::invalid_argument;
    case ROCFLASH_UNSUPPORTED:
      return ErrorCode::unimplemented;
    case ROCFLASH_OUT_OF_MEMORY:
      return ErrorCode::resource_exhausted;
    case ROCFLASH_DEVICE_ERROR:
      return ErrorCode::unknown;
    default:
      return ErrorCode::internal;
  }
}

// XLA requests the version that the handler was built for. It rejects newer ones than its own.
bool answer_metadata(const CallFrame& frame) {
  for (Extension* e = frame.header.extensions; e; e = e->next) {
    if (e->type != metadata_extension) continue;
    Metadata& metadata = *reinterpret_cast<MetadataExtension*>(e)->metadata;
    metadata.version.header.struct_size = sizeof metadata.version;
    metadata.version.major = api_major;
    metadata.version.minor = api_minor;
    // Not compatible with command buffers: a replay would use a workspace that was returned.
    metadata.traits = 0;
    return true;
  }
  return false;
}

Error* handle(CallFrame* frame, DLDeviceType type) {
  if (answer_metadata(*frame)) return nullptr;
  const rocflash_status status = guarded([&] {
    if (frame->stage == Stage::execute) execute(*frame, type);
  });
  if (status == ROCFLASH_OK) return nullptr;
  ErrorCreateArgs args{};
  args.header.struct_size = sizeof args;
  args.message = last_error();
  args.code = code_of(status);
  return frame->api->error_create(&args);
}

}  // namespace
}  // namespace rocflash::xla

using namespace rocflash::xla;

Error* rocflash_xla_cpu(CallFrame* frame) { return handle(frame, kDLCPU); }
Error* rocflash_xla_cuda(CallFrame* frame) { return handle(frame, kDLCUDA); }
Error* rocflash_xla_rocm(CallFrame* frame) { return handle(frame, kDLROCM); }
