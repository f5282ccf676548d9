// A fake interpreter and tensor library, for tests of src/api/python.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "api/python.hpp"

namespace rocflash::test {

struct Object {
  enum Kind { other, tensor, number, tuple, memory } kind = other;
  DLTensor described{};
  double value = 0;
  std::vector<Object*> items;
  rocflash_prepared prepared{};
  int references = 0;
};

inline Object none, yes, no, float_type;
inline bool error = false, gil_released = false, gil_was_released = false,
            gil_held_while_reading = true, gil_held_while_allocating = false;
inline int workspaces_freed = 0;
inline void* const gpu_stream = reinterpret_cast<void*>(std::uintptr_t{0x50});

inline Object* as_object(void* object) { return static_cast<Object*>(object); }

inline int describe(void* object, DLTensor* tensor) {
  gil_held_while_reading &= !gil_released;
  error |= as_object(object)->kind != Object::tensor;
  *tensor = as_object(object)->described;
  return error ? -1 : 0;
}

inline int allocate(DLTensor* prototype, rocflash_managed_tensor** made, void*,
                    void (*)(void*, const char*, const char*)) {
  gil_held_while_allocating |= !gil_released;
  *made = new rocflash_managed_tensor{};
  (*made)->tensor = *prototype;
  (*made)->tensor.data = reinterpret_cast<void*>(std::uintptr_t{0x70000000});
  (*made)->free = [](rocflash_managed_tensor* self) {
    ++workspaces_freed;
    delete self;
  };
  return 0;
}

inline int current_stream(DLDeviceType, std::int32_t, void** stream) {
  *stream = gpu_stream;
  return error ? -1 : 0;
}

inline rocflash_exchange table() {
  return {.major = 1,
          .minor = 3,
          .older = nullptr,
          .allocate = allocate,
          .export_tensor = nullptr,
          .import_tensor = nullptr,
          .describe = describe,
          .current_stream = current_stream};
}

inline rocflash_interpreter interpreter(const rocflash_exchange* exchange) {
  rocflash_interpreter i{};
  i.struct_size = sizeof i;
  i.prepared_size = sizeof(rocflash_prepared);
  i.exchange = exchange;
  i.none = &none;
  i.done = &yes;
  i.declined = &no;
  i.retain = [](void* object) { ++as_object(object)->references; };
  i.release_gil = []() -> void* {
    gil_released = gil_was_released = true;
    return &none;
  };
  i.acquire_gil = [](void* state) { gil_released = state != &none; };
  i.bytes_of = [](void* object) { return reinterpret_cast<char*>(&as_object(object)->prepared); };
  i.item_of = [](void* object, std::ptrdiff_t n) -> void* {
    const auto at = static_cast<std::size_t>(n);
    error |= at >= as_object(object)->items.size();
    return error ? nullptr : as_object(object)->items[at];
  };
  i.is_instance = [](void* object, void* type) {
    return type == &float_type && as_object(object)->kind == Object::number ? 1 : 0;
  };
  i.double_of = [](void* object) { return as_object(object)->value; };
  i.float_type = &float_type;
  return i;
}

}  // namespace rocflash::test
