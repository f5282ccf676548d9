// How forward is run: which kernel, how many workgroups, in which order.
#pragma once

#include "core/problem.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// Whether the kernels without matrix instructions compute the problem: dtypes and head sizes that the family
// has no others for, keys of another dtype than the queries', and f32 with products beyond its range or results that are sums
// of few products.
bool is_wide(const Problem& problem, kernel::Family family);

kernel::Variant forward_variant(const Problem& problem, const ForwardOutputs& outputs);

// Adds forward to a plan, unless there is nothing to write. Refuses a problem with more workgroups
// than a launch can have.
void plan_forward(Plan& plan, const Problem& problem, const ForwardOutputs& outputs, Chip chip);

}  // namespace rocflash::gpu
