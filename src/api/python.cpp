#include "api/python.hpp"

#include <pthread.h>

#include <cstdlib>

#include "api/check.hpp"
#include "api/structs.hpp"
#include "core/error.hpp"

namespace rocflash {
namespace {

rocflash_interpreter python{};
constexpr std::int32_t first_option = 3;  // behind q, k and v

// Scratch memory of this thread's calls, kept from one to the next. Calls that want more take long
// enough not to mind the other way, where memory is not kept for each thread.
//
// It is the C library's memory under a key of the C library, freed by the C library when the thread
// ends: a thread_local with a destructor would end the process if there were no memory to register
// it, and would call code of this library after it was closed.
class Scratch {
 public:
  static constexpr std::size_t most = std::size_t{4} << 20;

  Scratch() noexcept : usable_(pthread_key_create(&key_, std::free) == 0) {}
  ~Scratch() {
    if (usable_) pthread_key_delete(key_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Null when there is no memory for it.
  std::byte* take(std::size_t needed) const noexcept {
    if (!usable_) return nullptr;
    auto* block = static_cast<Block*>(pthread_getspecific(key_));
    if (!block || block->size < needed) {
      const std::size_t size = (needed + sizeof(Block) - 1) / sizeof(Block) * sizeof(Block);
      auto* larger = static_cast<Block*>(std::aligned_alloc(sizeof(Block), sizeof(Block) + size));
      if (!larger) return nullptr;
      larger->size = size;
      if (pthread_setspecific(key_, larger) != 0) {
        std::free(larger);
        return nullptr;
      }
      std::free(block);
      block = larger;
    }
    return reinterpret_cast<std::byte*>(block + 1);
  }

 private:
  struct alignas(64) Block {
    std::size_t size;  // of what follows
  };
  pthread_key_t key_{};
  bool usable_;
};

const Scratch scratch;

// Other threads of Python run in the meantime.
class Unlocked {
 public:
  Unlocked() : state_(python.let_others_run()) {}
  ~Unlocked() { python.go_on(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  void* state_;
};

// The checks read shapes where the tensors keep them, so nobody else may run before they are done.
template <class Call>
bool served(Checked<Call> checked) {
  Resources& resources = checked.call.resources;
  const std::size_t needed = checked.workspace();
  if (needed > Scratch::most) return false;
  resources.workspace = scratch.take(needed);
  resources.workspace_size = needed;
  if (!resources.workspace) return false;
  const Unlocked others;
  checked.run();
  return true;
}

bool served(std::int32_t operation, const rocflash_prepared_structs& p) {
  switch (operation) {
    case ROCFLASH_PREPARED_FORWARD:
      return served(check_forward(&p.problem, &p.outputs, &p.execution, Data::required));
    case ROCFLASH_PREPARED_INFER:
      return served(check_decode(&p.problem, nullptr, &p.outputs, &p.execution, Data::required));
    case ROCFLASH_PREPARED_BACKWARD:
      return served(check_backward(&p.problem, &p.tensors, &p.execution, Data::required));
    default:
      return false;
  }
}

// Whether a number is the same for sure: 1, 0, or -1 with an exception. Equal numbers of another
// type are not: 1 is a number of splits, True is none. Floats are often computed anew for each
// call.
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
      refuse("interpreter.prepared_size: ", given.prepared_size, "; it must be ",
             sizeof(rocflash_prepared));
    const rocflash_exchange* exchange = given.exchange;
    while (exchange && exchange->major > 1) exchange = exchange->older;
    if (!exchange || exchange->major != 1 || exchange->minor < 2 || !exchange->describe)
      refuse_unsupported(
          "interpreter.exchange: is no table of DLPack 1.2 or a later 1.x that describes tensors");
    given.exchange = exchange;
    python = given;
  });
}

void* rocflash_python_call(void* self, void* const* arguments, std::ptrdiff_t count) {
  const auto& prepared = *reinterpret_cast<const rocflash_prepared*>(python.bytes_of(self));
  if (count + prepared.options - 1 != prepared.count) return answer(python.declined);
  void* const options = arguments[first_option];
  for (std::int32_t n = 0; n < prepared.numbers; ++n) {
    void* const object = python.item_of(options, prepared.options + n);
    const int same = object ? same_number(prepared.number[n], object) : -1;
    if (same < 0) return nullptr;
    if (same == 0) return answer(python.none);
  }
  rocflash_prepared_structs structs = prepared.structs;
  DLTensor tensors[ROCFLASH_PREPARED_TENSORS];
  for (std::int32_t n = 0; n < prepared.count; ++n) {
    const std::int32_t option = n - first_option;
    void* const object = option < 0                  ? arguments[n]
                         : option < prepared.options ? python.item_of(options, option)
                                                     : arguments[n - prepared.options + 1];
    if (!object) return nullptr;
    if (object == python.none) continue;
    if (prepared.field_offset[n] < 0) return answer(python.declined);
    if (python.exchange->describe(object, &tensors[n]) != 0) return nullptr;
    if (tensors[n].device.device_type != kDLCPU) return answer(python.declined);
    auto* const field = reinterpret_cast<std::byte*>(&structs) + prepared.field_offset[n];
    *reinterpret_cast<const DLTensor**>(field) = &tensors[n];
  }
  bool done = false;
  const rocflash_status status = guarded([&] { done = served(prepared.operation, structs); });
  return answer(status == ROCFLASH_OK && done ? python.done : python.declined);
}
