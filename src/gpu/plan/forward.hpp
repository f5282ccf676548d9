// How forward is run: which kernel, how many workgroups, in which order.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Chips inside a device, each with a cache of its own, that take workgroups in turn.
int partitions(kernel::Family family, int units);

// Pairs of sequence and head whose blocks take turns, the longest of all of them first.
std::int32_t planes_together(const Problem& problem, kernel::Family family);

kernel::Variant forward_variant(const Problem& problem, const ForwardOutputs& outputs);

// Adds forward to a plan, unless there is nothing to write. Refuses a problem with more workgroups
// than a launch can have.
void plan_forward(Plan& plan, const Problem& problem, const ForwardOutputs& outputs, Chip chip);

}  // namespace rocflash::gpu
