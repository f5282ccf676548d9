// The fast path from Python: a function that CPython calls through METH_FASTCALL with tensor
// objects as arguments.
//
// It includes no Python header and links no Python library. It is given addresses instead:
// functions of CPython's stable ABI, and the C function table that the tensor type exports (DLPack
// 1.2 and newer, `__dlpack_c_exchange_api__`). python/rocflash/_torch/fast.py is its caller. It
// serves calls on CPU tensors whose workspace fits the per-thread one, and calls on GPU tensors
// aligned to 16 bytes, which it plans once per signature (gpu_call_plans.hpp). It declines all
// other calls, invalid ones included, and the caller then uses the C ABI.
#pragma once

#include <rocflash/rocflash.h>

#include <cstddef>
#include <cstdint>

extern "C" {

// DLPack's DLManagedTensorVersioned and DLPackExchangeAPI. The installed dlpack.h may be older than
// 1.2.
struct rocflash_managed_tensor {
  std::uint32_t major, minor;
  void* context;
  void (*free)(rocflash_managed_tensor* self);
  std::uint64_t flags;
  DLTensor tensor;
};

struct rocflash_exchange {
  std::uint32_t major, minor;
  const rocflash_exchange* older;
  // A new tensor like the prototype, on the device's current stream. Needs no GIL. 0, or -1 after a
  // call of `fail`.
  int (*allocate)(DLTensor* prototype, rocflash_managed_tensor** made, void* fail_context,
                  void (*fail)(void* context, const char* kind, const char* message));
  void (*export_tensor)();
  void (*import_tensor)();
  int (*describe)(void* object, DLTensor* tensor);  // 0, or -1 with an exception set
  // 0, or -1 with an exception set.
  int (*current_stream)(DLDeviceType type, std::int32_t device, void** stream);
};

// Objects and functions of the interpreter. They are valid until the process ends.
struct rocflash_interpreter {
  std::size_t struct_size;
  std::size_t prepared_size;  // of the caller's rocflash_prepared
  const rocflash_exchange* exchange;
  void *none, *done, *declined;  // None, True, False
  void (*retain)(void* object);
  void* (*release_gil)();            // PyEval_SaveThread
  void (*acquire_gil)(void* state);  // PyEval_RestoreThread; may end the thread
  char* (*bytes_of)(void* bytearray);
  void* (*item_of)(void* tuple, std::ptrdiff_t n);
  int (*is_instance)(void* object, void* type);
  double (*double_of)(void* object);
  void* float_type;
};

enum {
  ROCFLASH_PREPARED_FORWARD = 0,
  ROCFLASH_PREPARED_INFER = 1,
  ROCFLASH_PREPARED_BACKWARD = 2,
  ROCFLASH_PREPARED_DECODE = 3
};
enum { ROCFLASH_PREPARED_TENSORS = 28, ROCFLASH_PREPARED_NUMBERS = 16 };

struct rocflash_prepared_structs {
  rocflash_problem problem;
  rocflash_forward_outputs outputs;
  rocflash_backward_tensors tensors;
  rocflash_append append;
  rocflash_execution execution;
};

// A prepared call without its tensors: the content of the bytearray that a function is bound to.
struct rocflash_prepared {
  std::size_t answer;  // this field and the next two are used by Python only
  std::int64_t window[2];
  double scale;
  rocflash_prepared_structs structs;
  // The number objects that the structs were filled from.
  void* number[ROCFLASH_PREPARED_NUMBERS];
  std::int32_t operation;
  std::int32_t numbers;
  std::int32_t options;  // tensor options, given or None; the numbers follow them in one tuple
  std::int32_t count;    // all tensors: q, k, v, the options and the call's own
  // The offset in `structs` of the pointer to each tensor. -1: the argument must be None.
  std::int32_t field_offset[ROCFLASH_PREPARED_TENSORS];
  // The offset in rocflash_plan_arguments of the address of each tensor.
  std::int32_t address_offset[ROCFLASH_PREPARED_TENSORS];
  // Of this content, among all of the process: part of the signature of its plans.
  std::uint64_t serial;
};

// Called once, before rocflash_python_call. Rejects an incompatible interpreter or function table.
ROCFLASH_API rocflash_status rocflash_python_start(const rocflash_interpreter* interpreter);

// The METH_FASTCALL function: `self` is the bytearray, the arguments are q, k, v, the tuple of
// options and the call's own tensors. Returns True on success, False when the call was declined and
// the C ABI must be used, and None when the numbers are neither the prepared objects nor floats of
// equal value. Returns null with an exception set when, for example, an argument is not a tensor.
ROCFLASH_API void* rocflash_python_call(void* self, void* const* arguments, std::ptrdiff_t count);
}
