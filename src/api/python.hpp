// The shortest way from Python: a function that the interpreter calls as one of its own, with
// tensors as its objects are.
//
// It needs no Python header and no Python library. What it wants of the interpreter, and of the
// framework whose tensors they are, it is given as addresses: functions of CPython's stable ABI,
// and the table of C functions that a tensor's type offers to others (DLPack 1.2 and newer,
// `__dlpack_c_exchange_api__`). python/rocflash/_torch/fast.py is the other side. It serves calls
// on CPU tensors that need no more scratch memory than is kept at hand, and leaves all others,
// refusals too, to the C ABI.
#pragma once

#include <rocflash/rocflash.h>

#include <cstddef>
#include <cstdint>

extern "C" {

// DLPack's table of a framework's functions, as much of it as is used here. The installed dlpack.h
// may be older.
struct rocflash_exchange {
  std::uint32_t major, minor;
  const rocflash_exchange* older;
  void (*allocate)();
  void (*export_tensor)();
  void (*import_tensor)();
  int (*describe)(void* object, DLTensor* tensor);  // else -1, and an exception is set
};

// What is borrowed. Objects and functions are the interpreter's and stay for good.
struct rocflash_interpreter {
  std::size_t struct_size;
  std::size_t prepared_size;  // of the caller's rocflash_prepared
  const rocflash_exchange* exchange;
  void *none, *done, *declined;  // None, True, False
  void (*retain)(void* object);
  void* (*let_others_run)();
  void (*go_on)(void* state);
  char* (*bytes_of)(void* bytearray);
  void* (*item_of)(void* tuple, std::ptrdiff_t n);
  int (*is_instance)(void* object, void* type);
  double (*double_of)(void* object);
  void* float_type;
};

enum { ROCFLASH_PREPARED_FORWARD = 0, ROCFLASH_PREPARED_INFER = 1, ROCFLASH_PREPARED_BACKWARD = 2 };
enum { ROCFLASH_PREPARED_TENSORS = 24, ROCFLASH_PREPARED_NUMBERS = 16 };

struct rocflash_prepared_structs {
  rocflash_problem problem;
  rocflash_forward_outputs outputs;
  rocflash_backward_tensors tensors;
  rocflash_append append;
  rocflash_execution execution;
};

// A call but for its tensors: the content of the bytearray that a function is bound to.
struct rocflash_prepared {
  std::size_t answer;  // these three belong to Python
  std::int64_t window[2];
  double scale;
  rocflash_prepared_structs structs;
  // The options that are numbers, as the objects that the structs were filled from.
  void* number[ROCFLASH_PREPARED_NUMBERS];
  std::int32_t operation;
  std::int32_t numbers;
  std::int32_t options;  // that are tensors, given or None; the numbers follow them in one tuple
  std::int32_t count;    // of all tensors: q, k, v, the options and the call's own
  // The byte of `structs` that points to each tensor. -1: it must be None.
  std::int32_t field_offset[ROCFLASH_PREPARED_TENSORS];
};

// Once, before anything else. Refuses an interpreter or a table that does not fit.
ROCFLASH_API rocflash_status rocflash_python_start(const rocflash_interpreter* interpreter);

// The function, as METH_FASTCALL has it: `self` is the bytearray, the arguments are q, k, v, the
// tuple of options and the call's own tensors. Returns True; or False when it was not done and the
// C ABI should be asked; or None when the numbers are neither the prepared objects nor floats of
// the same value; or null with an exception, as when an argument is no tensor.
ROCFLASH_API void* rocflash_python_call(void* self, void* const* arguments, std::ptrdiff_t count);
}
