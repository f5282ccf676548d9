// Invalid calls: a change that makes a valid call invalid, and the expected status and message.
#pragma once

#include <rocflash/rocflash.h>

#include <string>
#include <vector>

#include "support/call.hpp"

namespace rocflash::test {

using Invoke = rocflash_status (*)(Call&);

inline rocflash_status forward(Call& c) {
  return rocflash_forward(&c.problem, &c.forward_outputs, &c.execution);
}
inline rocflash_status backward(Call& c) {
  return rocflash_backward(&c.problem, &c.backward_tensors, &c.execution);
}

struct BadCall {
  const char* name;
  std::string message;
  void (*corrupt)(Call&);
  Invoke invoke = forward;
  rocflash_status status = ROCFLASH_INVALID_ARGUMENT;
  // The valid call has varlen sequences (3, 2 queries; 5, 4 keys) instead of dense ones.
  bool packed = false;
};

std::vector<BadCall> bad_structs_and_tensors();
std::vector<BadCall> bad_shapes_and_lengths();
std::vector<BadCall> bad_options();
std::vector<BadCall> bad_outputs();
std::vector<BadCall> bad_caches();
std::vector<BadCall> bad_quantized();

}  // namespace rocflash::test
