#include "api/python.hpp"

#include "api/check.hpp"
#include "api/gpu_call_plans.hpp"
#include "api/structs.hpp"
#include "core/error.hpp"
#include "platform/memory.hpp"

namespace rocflash {
namespace {

rocflash_interpreter python{};
constexpr std::int32_t first_option = 3;  // after q, k and v

// The workspace of this thread's calls, reused by the next call. A call that needs more takes the C
// ABI's path: its run time hides that path's overhead, and it keeps no workspace per thread.
class Scratch {
 public:
  static constexpr std::size_t max_bytes = std::size_t{4} << 20;

  // Null if out of memory.
  std::byte* take(std::size_t needed) const noexcept {
    if (!memory_.usable()) return nullptr;
    auto* block = static_cast<Block*>(memory_.get());
    if (!block || block->size < needed) {
      const std::size_t size = (needed + sizeof(Block) - 1) / sizeof(Block) * sizeof(Block);
      auto* larger =
          static_cast<Block*>(platform::aligned_allocate(sizeof(Block), sizeof(Block) + size));
      if (!larger) return nullptr;
      larger->size = size;
      if (!memory_.set(larger)) {
        platform::aligned_free(larger);
        return nullptr;
      }
      platform::aligned_free(block);
      block = larger;
    }
    return reinterpret_cast<std::byte*>(block + 1);
  }

 private:
  struct alignas(64) Block {
    std::size_t size;  // of what follows
  };
  platform::ThreadMemory memory_;
};

const Scratch scratch;

// Validates under the GIL, because the validation reads the shapes that the tensor objects own,
// then releases the GIL for the computation. `released` receives the thread state; the caller
// restores it.
template <class Call>
bool served(Checked<Call> checked, void*& released) {
  Resources& resources = checked.call.resources;
  const std::size_t needed = checked.workspace();
  if (needed > Scratch::max_bytes) return false;
  resources.workspace = scratch.take(needed);
  resources.workspace_size = needed;
  if (!resources.workspace) return false;
  released = python.release_gil();
  checked.run();
  return true;
}

bool served(std::int32_t operation, const rocflash_prepared_structs& p, void*& released) {
  switch (operation) {
    case ROCFLASH_PREPARED_FORWARD:
      return served(check_forward(&p.problem, &p.outputs, &p.execution, Data::required), released);
    case ROCFLASH_PREPARED_INFER:
      return served(check_decode(&p.problem, nullptr, &p.outputs, &p.execution, Data::required),
                    released);
    case ROCFLASH_PREPARED_BACKWARD:
      return served(check_backward(&p.problem, &p.tensors, &p.execution, Data::required), released);
    case ROCFLASH_PREPARED_DECODE:
      return served(check_decode(&p.problem, &p.append, &p.outputs, &p.execution, Data::required),
                    released);
    default:
      return false;
  }
}

// Runs the plan of a call on a GPU. Everything but the stream is done without the GIL: planning may
// load kernels, which may wait for the device, and an allocation may wait for other threads.
bool served_on_gpu(const rocflash_prepared& prepared, const rocflash_prepared_structs& structs,
                   const GpuCall& call, void* stream, void*& released) {
  rocflash_plan_arguments arguments = call.arguments;
  arguments.stream = stream;
  std::shared_ptr<rocflash_plan> plan = gpu_call_plans().find(call);
  released = python.release_gil();
  if (!plan) plan = gpu_call_plans().create(prepared.operation, structs, call);
  if (!plan || rocflash_plan_workspace(plan.get(), &arguments.workspace_size) != ROCFLASH_OK)
    return false;
  rocflash_managed_tensor* workspace = nullptr;
  if (arguments.workspace_size != 0) {
    std::int64_t size = static_cast<std::int64_t>(arguments.workspace_size), step = 1;
    DLTensor prototype{nullptr, call.device, 1, {kDLUInt, 8, 1}, &size, &step, 0};
    const auto ignore = [](void*, const char*, const char*) {};
    if (python.exchange->allocate(&prototype, &workspace, nullptr, ignore) != 0) return false;
    arguments.workspace = workspace->tensor.data;
  }
  const bool done = rocflash_plan_run(plan.get(), &arguments) == ROCFLASH_OK;
  if (workspace) workspace->free(workspace);  // in stream order
  return done;
}

// Whether two number objects are identical, or floats of equal value: 1, 0, or -1 with an exception
// set. Numbers of different types are never the same: 1 is a valid num_splits, True is not. Floats
// are compared by value because callers often compute a new object per call.
int same_number(void* known, void* given) {
  if (known == given) return 1;
  for (void* number : {known, given}) {
    const int is_float = python.is_instance(number, python.float_type);
    if (is_float != 1) return is_float;
  }
  return python.double_of(known) == python.double_of(given);
}

void* answer(void* object) {
  python.retain(object);
  return object;
}

}  // namespace
}  // namespace rocflash

using namespace rocflash;

rocflash_status rocflash_python_start(const rocflash_interpreter* interpreter) {
  return guarded([&] {
    rocflash_interpreter given = read_struct("interpreter", interpreter);
    if (given.prepared_size != sizeof(rocflash_prepared))
      refuse("interpreter.prepared_size is ", given.prepared_size, "; it must be ",
             sizeof(rocflash_prepared));
    const rocflash_exchange* exchange = given.exchange;
    while (exchange && exchange->major > 1) exchange = exchange->older;
    if (!exchange || exchange->major != 1 || exchange->minor < 2 || !exchange->describe ||
        !exchange->allocate || !exchange->current_stream)
      refuse_unsupported(
          "interpreter.exchange has no DLPack 1.2 or later 1.x table; it must describe tensors");
    given.exchange = exchange;
    python = given;
  });
}

void* rocflash_python_call(void* self, void* const* arguments, std::ptrdiff_t count) {
  const auto& prepared = *reinterpret_cast<const rocflash_prepared*>(python.bytes_of(self));
  if (count + prepared.options - 1 != prepared.count || prepared.count < first_option)
    return answer(python.declined);
  void* const options = arguments[first_option];
  for (std::int32_t n = 0; n < prepared.numbers; ++n) {
    void* const object = python.item_of(options, prepared.options + n);
    const int same = object ? same_number(prepared.number[n], object) : -1;
    if (same < 0) return nullptr;
    if (same == 0) return answer(python.none);
  }
  rocflash_prepared_structs structs = prepared.structs;
  DLTensor tensors[ROCFLASH_PREPARED_TENSORS];
  GpuCall call;
  std::uint32_t given = 0;  // a bit per tensor
  for (std::int32_t n = 0; n < prepared.count; ++n) {
    const std::int32_t option = n - first_option;
    void* const object = option < 0                  ? arguments[n]
                         : option < prepared.options ? python.item_of(options, option)
                                                     : arguments[n - prepared.options + 1];
    if (!object) return nullptr;
    if (object == python.none) continue;
    if (prepared.field_offset[n] < 0) return answer(python.declined);
    if (python.exchange->describe(object, &tensors[n]) != 0) return nullptr;
    given |= 1U << n;
    auto* const field = reinterpret_cast<std::byte*>(&structs) + prepared.field_offset[n];
    *reinterpret_cast<const DLTensor**>(field) = &tensors[n];
  }
  if (!(given & 1U)) return answer(python.declined);
  const DLDevice device = tensors[0].device;
  const bool on_gpu = device.device_type == kDLROCM || device.device_type == kDLCUDA;
  if (!on_gpu && device.device_type != kDLCPU) return answer(python.declined);
  void* stream = nullptr;
  if (on_gpu) {
    if (!call.read(prepared, tensors, given)) return answer(python.declined);
    if (python.exchange->current_stream(device.device_type, device.device_id, &stream) != 0)
      return nullptr;
  }
  bool done = false;
  void* released = nullptr;
  const rocflash_status status = guarded([&] {
    done = on_gpu ? served_on_gpu(prepared, structs, call, stream, released)
                  : served(prepared.operation, structs, released);
  });
  // While the interpreter finalizes, CPython before 3.14 ends a daemon thread here with
  // pthread_exit, which unwinds the stack. No frame between this one and the thread's start may
  // catch that or be noexcept, so the GIL is acquired here and not in a destructor inside of
  // `guarded`. Every local of this function is trivially destructible.
  if (released) python.acquire_gil(released);
  return answer(status == ROCFLASH_OK && done ? python.done : python.declined);
}
