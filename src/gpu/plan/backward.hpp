// How backward is run: which kernels, in which order, and with how much scratch memory.
#pragma once

#include <cstddef>

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

kernel::Variant backward_variant(const Problem& problem, const BackwardTensors& tensors);

// Whether one kernel computes all gradients and adds to dq in f32: faster, but bits depend on the order in
// which workgroups run. Chosen where dq and one of dk and dv are wanted, `deterministic` is not asked for,
// and the family has the kernel.
bool is_fused(const Problem& problem, const BackwardTensors& tensors, kernel::Family family);
// The same where `deterministic` does not count: Hopper's kernel has a fixed order for it.
bool may_fuse(const Problem& problem, const BackwardTensors& tensors, kernel::Family family);

// Adds backward to a plan. `workspace` is the call's scratch memory; null where only the plan's size is
// asked for.
void plan_backward(Plan& plan, const Problem& problem, const BackwardTensors& tensors,
                   std::byte* workspace, Chip chip);

}  // namespace rocflash::gpu
