// Instructions that gfx9 lets run too early.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/op.h"

namespace rocflash::sim {

// Makes those a fault of strict runs.
void bind_hazards(std::span<Op> ops, const std::vector<std::string>& texts);

}  // namespace rocflash::sim
