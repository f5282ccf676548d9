// What no kernel runs: the one place that says so, for every operation.
#pragma once

#include <string>

#include "core/calls.hpp"
#include "table/families.hpp"

namespace rocflash::gpu {

// Why the call cannot be run, naming the argument; empty when it can. `place` is the device as
// messages name it: "rocm:0".
std::string refusal(const ForwardCall& call);
std::string refusal(const BackwardCall& call, kernel::Family family);
std::string refusal(const DecodeCall& call, const std::string& place);

}  // namespace rocflash::gpu
