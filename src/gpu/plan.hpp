// How a problem is run on a GPU: which kernels, how many workgroups. Pure
// functions of the problem and of a few facts about the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "attention/arguments.hpp"
#include "core/problem.hpp"
#include "gpu/driver/driver.hpp"
#include "table/groups.hpp"

namespace rocflash::gpu {

// Chips inside a device, each with a cache of its own, that take workgroups in turn.
int partitions(kernel::Family family, int units);

// Pairs of sequence and head whose blocks take turns, the longest of all of them first.
std::int32_t planes_together(const Problem& problem, kernel::Family family);

// Why no kernel runs this problem, naming the argument; empty when one does.
std::string refusal(const Problem& problem, bool gradients);

kernel::Variant forward_variant(const Problem& problem, const ForwardOutputs& outputs);

struct Launch {
  std::string kernel;
  LaunchShape shape;
};

struct ForwardPlan {
  std::optional<Launch> forward, weights;  // none: there is nothing to write
  kernel::ForwardArguments forward_arguments;
  kernel::WeightsArguments weights_arguments;
};

// Refuses a problem with more workgroups than a launch can have. No kernel needs a workspace.
ForwardPlan plan_forward(const Problem& problem, const ForwardOutputs& outputs,
                         kernel::Family family, int units);

}  // namespace rocflash::gpu
