// What no kernel runs: the one place that says so, for every operation.
#pragma once

#include <string>

#include "core/calls.hpp"
#include "table/families.hpp"

namespace rocflash::gpu {

// Why the call cannot be run, naming the argument; empty when it can.
std::string refusal(const ForwardCall& call);
std::string refusal(const BackwardCall& call, kernel::Family family);

}  // namespace rocflash::gpu
