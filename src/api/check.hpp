// The checks at the door: C structs in, one trusted Problem out, or a Refusal that names the
// argument.
#pragma once

#include <rocflash/rocflash.h>

#include "api/checker.hpp"
#include "api/tensor.hpp"
#include "core/append.hpp"
#include "core/backend.hpp"
#include "core/problem.hpp"

namespace rocflash {

struct ForwardCall {
  Problem problem;
  ForwardOutputs outputs;
  Execution execution;
  const Backend* backend;
};

struct DecodeCall : ForwardCall {
  Append append;
};

struct BackwardCall {
  Problem problem;
  BackwardTensors tensors;
  Execution execution;
  const Backend* backend;
};

ForwardCall check_forward(const rocflash_problem*, const rocflash_forward_outputs*,
                          const rocflash_execution*, Data);
DecodeCall check_decode(const rocflash_problem*, const rocflash_append*,
                        const rocflash_forward_outputs*, const rocflash_execution*, Data);
BackwardCall check_backward(const rocflash_problem*, const rocflash_backward_tensors*,
                            const rocflash_execution*, Data);

// New keys against the cache they go into.
Append check_append(const rocflash_append&, Checker&, const Problem&);

// How to run; null means all defaults.
rocflash_execution read_execution(const rocflash_execution*);
Execution check_execution(const rocflash_execution&, Device);

// The bytes of workspace that a call needs; refuses a call that needs more than there can be.
std::size_t check_workspace_size(Size needed, const Problem&);
// Takes the workspace into use, or refuses one that is too small for `needed` bytes.
void check_workspace(const rocflash_execution*, std::size_t needed, Execution&);

}  // namespace rocflash
