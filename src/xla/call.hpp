// A custom call of XLA as a call of the C ABI: its buffers as tensors, its attributes as options.
#pragma once

#include <rocflash/rocflash.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "xla/abi.hpp"

namespace rocflash::xla {

enum class Operation { forward, infer, backward, decode };

struct Structs {
  rocflash_problem problem;
  rocflash_forward_outputs outputs;
  rocflash_backward_tensors gradients;
  rocflash_append append;
  rocflash_execution execution;
};

// Throws a Refusal that names an attribute or a buffer. `structs` point into the object itself and
// into XLA's buffers.
class Call {
 public:
  Call(const CallFrame& frame, DLDevice device);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Operation operation = Operation::forward;
  Structs structs{};

 private:
  void read_attribute(std::string_view name, AttributeType type, const void* value);
  void read_buffers(const char* kind, const Buffers& buffers, std::string_view names);
  void set_tensor(std::string_view name, const Buffer& buffer, bool is_result);

  DLDevice device_;
  std::string_view argument_names_, result_names_;
  std::int64_t window_[2] = {-1, -1};
  float scale_ = 0;
  std::array<DLTensor, 32> tensors_{};
  std::size_t count_ = 0;
};

}  // namespace rocflash::xla
