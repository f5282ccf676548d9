// The checks at the door: C structs in, one trusted Problem out, or a Refusal that names the
// argument.
#pragma once

#include <rocflash/rocflash.h>

#include "api/tensor.hpp"
#include "core/backend.hpp"
#include "core/problem.hpp"

namespace rocflash {

struct ForwardCall {
  Problem problem;
  ForwardOutputs outputs;
  Execution execution;
  const Backend* backend;
};

struct BackwardCall {
  Problem problem;
  BackwardTensors tensors;
  Execution execution;
  const Backend* backend;
};

ForwardCall check_forward(const rocflash_problem*, const rocflash_forward_outputs*,
                          const rocflash_execution*, Data);
BackwardCall check_backward(const rocflash_problem*, const rocflash_backward_tensors*,
                            const rocflash_execution*, Data);

// Takes the workspace into use, or refuses one that is too small for `needed` bytes.
void check_workspace(const rocflash_execution*, std::size_t needed, Execution&);

}  // namespace rocflash
