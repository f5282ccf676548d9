// Problems that no GPU kernel supports.
#pragma once

#include <string>

#include "core/calls.hpp"
#include "table/families.hpp"

namespace rocflash::gpu {

// Why the call is not supported, naming the argument and its value; empty if it is supported.
std::string refusal(const ForwardCall& call);
std::string refusal(const BackwardCall& call, kernel::Family family);

}  // namespace rocflash::gpu
