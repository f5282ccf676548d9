// Problems as kernels get them: single rows have a stride, which validation sets to 0. Selection
// and launch plans prepare a problem alike; to prepare it again changes nothing.
#pragma once

#include "core/problem.hpp"

namespace rocflash::gpu {

// Packed rows without sequences become one sequence without keys.
void prepare_forward(Problem& problem, ForwardOutputs& outputs);
Problem decode_problem(const Problem& given);
void prepare_backward(Problem& problem, BackwardTensors& tensors);

}  // namespace rocflash::gpu
